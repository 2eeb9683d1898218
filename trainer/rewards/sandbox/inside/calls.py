"""What a child can be asked to do, by name."""

from __future__ import annotations

from collections.abc import Callable

from trainer.rewards.sandbox.inside import attempts, functions, plans, programs

CALLS: dict[str, Callable[[], None]] = {
    "attempts": attempts.perform,
    "function": functions.perform,
    "plan": plans.perform,
    "program": programs.perform_program,
    "steps": programs.perform_steps,
}
