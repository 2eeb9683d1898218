from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from trainer.rewards.sandbox.levels import LEVELS, NAMES, obstacle
from trainer.rewards.sandbox.limits import NoGroup, parent_here
from trainer.rewards.sandbox.slot import Trial, try_level


class Command(BaseCommand):
    help = (
        "Test the sandboxes for reward code: A is bubblewrap, B kernel filters "
        "(Landlock, seccomp) only. Fails if neither works."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def handle(self, *_args: Any, **_options: Any) -> None:
        trials = {
            level: Trial(fault=reason)
            if (reason := obstacle(level))
            else try_level(level)
            for level in LEVELS
        }
        for level, trial in trials.items():
            result = trial.fault or "works"
            self.stdout.write(f"Level {level} ({NAMES[level]}): {result}.")
        working = [level for level, trial in trials.items() if trial.fault is None]
        if not working:
            raise CommandError(
                "Reward code cannot run on this machine. Install bubblewrap, or "
                "use Linux 5.13 or newer. Rules without code still work."
            )
        self.stdout.write(f"Control group: {_group(trials[working[0]])}.")
        self.stdout.write(f"Reward code runs at level {working[0]}.")


def _group(trial: Trial) -> str:
    if trial.has_group:
        return "limits the memory and processes of a sandbox"
    try:
        parent = parent_here()
    except NoGroup as reason:
        why = str(reason)
    else:
        why = f"{parent} accepts no processes"
    return f"none, so limits apply per process ({why})"
