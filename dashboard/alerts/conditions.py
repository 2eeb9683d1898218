"""What a rule asks of a metric's readings, step by step.

A reading is a number or None: no value, or one that is not finite. What is usual goes
by the readings before a step, so whether a step passes is told by the history up to it
and by nothing else: a restarted worker comes to the same answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

FIRST = 5  # readings that say what is usual at the start of a run or phase
USUAL = 50  # readings before a step that say what is usual by now
FEWEST = 10  # fewer say nothing
MAX_STEPS = 500


class Kind(StrEnum):
    ABOVE = "above"
    BELOW = "below"
    CHANGES = "changes"  # by more than so many per cent against so many steps ago
    MISSING = "missing"
    CONSTANT = "constant"
    SHARE_OF_FIRST = "share_of_first"  # below a share of what it began with
    TIMES_USUAL = "times_usual"
    SHARE_OF_USUAL = "share_of_usual"
    OVERFITS = "overfits"  # of evaluations: falls while the training reward rises
    WARNED = "warned"  # by the trainer


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A kind with its bound, how far it looks back, and for how many steps it holds.

    >>> Condition(kind=Kind.ABOVE, threshold=0.5, for_steps=10)
    """

    kind: Kind
    threshold: float = 0.0
    for_steps: int = 1
    back: int = 1  # of `changes`

    @property
    def reach(self) -> int:
        """How many readings tell for sure whether it holds now."""
        return self.for_steps + max(self.back, USUAL)


@dataclass
class Track:
    """One condition over one metric of one run: two counts and a few readings.

    A step without a value counts for a condition on missing values only: some metrics,
    such as a KL over a sample of tokens, are measured every few steps.
    `streak` readings in a row passed, the last one included; `calm` did not.
    `bound` is what the last reading was compared with. While an alert is open it stays
    at what it was then, else the new state would soon be the usual one.
    """

    condition: Condition
    streak: int = 0
    calm: int = 0
    bound: float | None = None
    held: float | None = None  # the bound of the open alert
    _first: list[float] = field(default_factory=list)
    _recent: deque[float | None] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=max(USUAL, self.condition.back))

    def begin_phase(self) -> None:
        """Another phase has usual values of its own."""
        self._first.clear()
        self._recent.clear()
        self.streak = self.calm = 0

    def remember_first(self, readings: Iterable[float]) -> None:
        self._first = list(readings)[:FIRST]

    def heeds(self, value: float | None) -> bool:
        return value is not None or self.condition.kind is Kind.MISSING

    def read(self, value: float | None) -> None:
        if not self.heeds(value):
            return
        passes = self._passes(value)
        self.streak = self.streak + 1 if passes else 0
        self.calm = 0 if passes else self.calm + 1
        self._recent.append(value)
        if value is not None and len(self._first) < FIRST:
            self._first.append(value)

    @property
    def fires(self) -> bool:
        return self.streak >= self.condition.for_steps

    @property
    def has_calmed(self) -> bool:
        """As many readings are needed to take an alert back as to raise it."""
        return self.calm >= self.condition.for_steps

    def _passes(self, value: float | None) -> bool:
        condition = self.condition
        self.bound = self._find_bound() if self.held is None else self.held
        if condition.kind is Kind.MISSING:
            return value is None
        if value is None or self.bound is None:
            return False
        match condition.kind:
            case Kind.ABOVE | Kind.TIMES_USUAL:
                return value > self.bound
            case Kind.BELOW | Kind.SHARE_OF_FIRST | Kind.SHARE_OF_USUAL:
                return value < self.bound
            case Kind.CHANGES:
                before = self._ago(condition.back)
                if not before:  # of 0 there is no per cent
                    return False
                return abs(value - before) > self.bound * abs(before)
            case Kind.CONSTANT:
                before = self._ago(1)
                return before is not None and math.isclose(
                    value, before, rel_tol=1e-9, abs_tol=1e-12
                )
        raise AssertionError(f"{condition.kind} is not read step by step")

    def _find_bound(self) -> float | None:
        condition = self.condition
        match condition.kind:
            case Kind.CHANGES:
                return condition.threshold / 100
            case Kind.SHARE_OF_FIRST:
                known = self._first
                return (
                    condition.threshold * median(known) if len(known) == FIRST else None
                )
            case Kind.TIMES_USUAL | Kind.SHARE_OF_USUAL:
                known = [v for v in list(self._recent)[-USUAL:] if v is not None]
                return (
                    condition.threshold * median(known)
                    if len(known) >= FEWEST
                    else None
                )
        return condition.threshold

    def _ago(self, readings: int) -> float | None:
        """The value so many readings before the one at hand."""
        return self._recent[-readings] if len(self._recent) >= readings else None
