"""Evaluation falls while the training reward rises."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dashboard.alerts.conditions import Condition

REWARDS = 10  # training steps whose mean reward stands beside an evaluation
EVALUATIONS = 20  # the last of a run, among which the best is looked for


@dataclass(frozen=True, slots=True)
class Standing:
    """An evaluation, and the mean training reward as it was made."""

    value: float
    reward: float


@dataclass
class Overfit:
    """One held-out set of one run; counts as `conditions.Track` does.

    An evaluation passes when it is more than the threshold below the best one, and the
    training reward is higher than it was then.
    """

    condition: Condition
    streak: int = 0
    calm: int = 0
    bound: float | None = None  # below which the last one would have passed
    _recent: deque[Standing] = field(default_factory=lambda: deque(maxlen=EVALUATIONS))

    def read(self, value: float | None, reward: float | None) -> None:
        if value is None or reward is None:
            self.streak = 0
            return
        best = max(self._recent, key=lambda one: one.value, default=None)
        self.bound = None if best is None else best.value - self.condition.threshold
        passes = (
            best is not None
            and self.bound is not None
            and value < self.bound
            and reward > best.reward
        )
        self.streak = self.streak + 1 if passes else 0
        self.calm = 0 if passes else self.calm + 1
        self._recent.append(Standing(value, reward))

    @property
    def fires(self) -> bool:
        return self.streak >= self.condition.for_steps

    @property
    def has_calmed(self) -> bool:
        return self.calm >= self.condition.for_steps
