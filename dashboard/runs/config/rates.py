"""The learning rate that a configuration plans for a step."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import RunConfig, learning_rate


@dataclass(frozen=True, slots=True)
class Rate:
    """At a step: as it would be, and as it is to become."""

    step: int
    before: float | None  # None: the run had no such step
    after: float


def rate_at(config: RunConfig, step: int) -> float | None:
    """None past the run's end."""
    for stage in config.stages:
        if stage.first_step <= step <= stage.last_step:
            return learning_rate(step - stage.first_step + 1, stage.config.optim)
    return None


def compare_rates(before: RunConfig, after: RunConfig, *, first: int) -> list[Rate]:
    """Of a run made longer: at the step `first`, half way and at both ends."""
    end = after.optim.num_steps
    steps = {first, (first + end) // 2, before.optim.num_steps, end}
    return [
        Rate(step, rate_at(before, step), rate)
        for step in sorted(steps)
        if first <= step <= end and (rate := rate_at(after, step)) is not None
    ]
