"""Conditions of alert rules on a metric, evaluated step by step.

A reading is a number or None: missing or not finite. Baselines such as the running
median come from the readings before a step, so a restarted process gets the same
result from the same history.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

FIRST = 5  # readings that say what is usual at the start of a run or phase
USUAL = 50  # readings before a step that say what is usual by now
FEWEST = 10  # readings for a running median
MAX_STEPS = 500
REWARD = "reward/mean"
EVALUATIONS = 20  # the last ones, of which the best counts


class Kind(StrEnum):
    ABOVE = "above"
    BELOW = "below"
    CHANGES = "changes"  # by more than a percentage, against some steps earlier
    MISSING = "missing"
    CONSTANT = "constant"
    SHARE_OF_FIRST = "share_of_first"  # below a share of its first value
    TIMES_FIRST = "times_first"
    TIMES_USUAL = "times_usual"
    SHARE_OF_USUAL = "share_of_usual"
    OVERFITS = "overfits"  # of evaluations: falls while the training reward rises
    WARNED = "warned"  # by the trainer, of what no other rule covers


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def safe_median(readings: Iterable[float]) -> float:
    """Return the median, computed on halves so that the sum of two floats cannot
    overflow.
    """
    return 2 * median([value / 2 for value in readings])


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A kind with its threshold, its look-back and its duration in steps.

    >>> Condition(kind=Kind.ABOVE, threshold=0.5, for_steps=10)
    """

    kind: Kind
    threshold: float = 0.0
    for_steps: int = 1
    lookback: int = 1  # of `changes`
    also_above: float | None = None  # a second, absolute bound of the TIMES kinds

    def __post_init__(self) -> None:
        has_times = self.kind in (Kind.TIMES_FIRST, Kind.TIMES_USUAL)
        assert self.also_above is None or has_times, "also_above needs a TIMES kind"

    @property
    def memory(self) -> int:
        """Number of readings before a step that its bound depends on."""
        match self.kind:
            case Kind.CHANGES:
                return self.lookback
            case Kind.CONSTANT:
                return 1
            case Kind.TIMES_USUAL | Kind.SHARE_OF_USUAL:
                return USUAL
            case Kind.OVERFITS:
                return EVALUATIONS
        return 0

    @property
    def reach(self) -> int:
        """Number of readings that determine whether it holds now."""
        return self.for_steps + max(self.lookback, USUAL)

    def describe(self, metric: str) -> str:
        """Return a sentence without its full stop."""
        x, n = f"{self.threshold:g}", self.for_steps
        unit = "evaluations" if is_evaluated(metric) else "steps"
        for_steps = f" for {n} {unit}" if n > 1 else ""
        also = "" if self.also_above is None else f" and above {self.also_above:g}"
        match self.kind:
            case Kind.ABOVE | Kind.BELOW:
                return f"{metric} {self.kind.value} {x}{for_steps}"
            case Kind.CHANGES:
                ago = f"{self.lookback} {unit} earlier"
                if self.lookback == 1:
                    ago = f"the previous {unit[:-1]}"
                return f"{metric} changes by more than {x}% from {ago}{for_steps}"
            case Kind.MISSING:
                return f"{metric} is missing or not finite{for_steps}"
            case Kind.CONSTANT:
                return f"{metric} does not change{for_steps}"
            case Kind.SHARE_OF_FIRST:
                return f"{metric} below {x} × its first value{for_steps}"
            case Kind.TIMES_FIRST:
                return f"{metric} above {x} × its first value{also}{for_steps}"
            case Kind.TIMES_USUAL:
                return f"{metric} above {x} × its running median{also}{for_steps}"
            case Kind.SHARE_OF_USUAL:
                return f"{metric} below {x} × its running median{for_steps}"
            case Kind.OVERFITS:
                name = metric.replace("*", "<set>")
                return (
                    f"{name} more than {x} below its best while {REWARD} is "
                    f"higher{for_steps}"
                )
            case Kind.WARNED:
                return "A trainer warning that no other rule covers"


@dataclass
class Track:
    """State of one condition on one metric of one run.

    Missing values count only for conditions on missing values: some metrics, such as a
    KL on a sample of tokens, are measured every few steps. The last `streak` readings
    met the condition, or the last `num_clear` did not. `bound` is the value that the
    last reading was compared with; it is fixed while an alert is open, else the new
    state would soon be the baseline.
    """

    condition: Condition
    streak: int = 0
    num_clear: int = 0
    bound: float | None = None
    held: float | None = None  # the bound of the open alert
    _first: list[float] = field(default_factory=list)
    _first_bound: float | None = None  # that goes by them
    _recent: deque[float | None] = field(default_factory=deque)
    _rewards: deque[float] = field(default_factory=deque)  # beside recent evaluations

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=self.condition.memory)
        self._rewards = deque(maxlen=self.condition.memory)

    def begin_phase(self) -> None:
        """Forget the usual values, which are another phase's own."""
        self.remember_first(())
        self._recent.clear()
        self.streak = self.num_clear = 0

    def hold(self, bound: float | None) -> None:
        """Keep a bound; overfitting has none, since the best evaluation moves."""
        self.held = None if self.condition.kind is Kind.OVERFITS else bound

    def remember_first(self, readings: Iterable[float]) -> None:
        self._first = list(readings)[:FIRST]
        is_full = len(self._first) == FIRST
        self._first_bound = self._times_median(self._first) if is_full else None

    def counts(self, value: float | None) -> bool:
        return value is not None or self.condition.kind is Kind.MISSING

    def read(self, value: float | None, *, reward: float | None = None) -> None:
        """`reward` stands beside an evaluation: the training reward as it was made."""
        overfits = self.condition.kind is Kind.OVERFITS
        if (value is None and not self.counts(value)) or (overfits and reward is None):
            return
        passes = self._passes(value, reward)
        self.streak = self.streak + 1 if passes else 0
        self.num_clear = 0 if passes else self.num_clear + 1
        self._recent.append(value)
        if reward is not None and overfits:
            self._rewards.append(reward)
        if value is not None and len(self._first) < FIRST:
            self.remember_first([*self._first, value])

    @property
    def fires(self) -> bool:
        return self.streak >= self.condition.for_steps

    @property
    def has_recovered(self) -> bool:
        """True after as many clear readings as it takes to raise the alert."""
        return self.num_clear >= self.condition.for_steps

    def _passes(self, value: float | None, reward: float | None) -> bool:
        condition, also = self.condition, self.condition.also_above
        if condition.kind is Kind.MISSING:
            return value is None
        if value is None or (also is not None and value <= also):
            return False  # before values are sorted for their median
        if condition.kind is Kind.CONSTANT:
            before = self._ago(1)
            return before is not None and math.isclose(
                value, before, rel_tol=1e-9, abs_tol=1e-12
            )
        self.bound = self._find_bound() if self.held is None else self.held
        if self.bound is None:
            return False
        match condition.kind:
            case Kind.ABOVE | Kind.TIMES_FIRST | Kind.TIMES_USUAL:
                return value > self.bound
            case Kind.BELOW | Kind.SHARE_OF_FIRST | Kind.SHARE_OF_USUAL:
                return value < self.bound
            case Kind.CHANGES:
                before = self._ago(condition.lookback)
                if not before:  # of 0 there is no per cent
                    return False
                return abs(value - before) > self.bound * abs(before)
            case Kind.OVERFITS:
                assert reward is not None, "no evaluation is read without one"
                return value < self.bound and reward > self._best()[1]
        raise AssertionError(f"{condition.kind} is not read step by step")

    def _find_bound(self) -> float | None:
        condition = self.condition
        match condition.kind:
            case Kind.ABOVE | Kind.BELOW:
                return condition.threshold
            case Kind.CHANGES:
                return condition.threshold / 100
            case Kind.SHARE_OF_FIRST | Kind.TIMES_FIRST:
                return self._first_bound
            case Kind.TIMES_USUAL | Kind.SHARE_OF_USUAL:
                if len(self._recent) < FEWEST:
                    return None
                return self._times_median(v for v in self._recent if v is not None)
            case Kind.OVERFITS:
                return self._best()[0] - condition.threshold if self._recent else None
        raise AssertionError(f"{condition.kind} has no bound")

    def _times_median(self, values: Iterable[float]) -> float:
        bound, also = (
            self.condition.threshold * safe_median(values),
            self.condition.also_above,
        )
        return bound if also is None else max(bound, also)

    def _best(self) -> tuple[float, float]:
        """Return the best evaluation, and the training reward as it was made."""
        values = (value for value in self._recent if value is not None)
        return max(zip(values, self._rewards, strict=True), key=lambda pair: pair[0])

    def _ago(self, readings: int) -> float | None:
        """Return the value so many readings before the one at hand."""
        return self._recent[-readings] if len(self._recent) >= readings else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "streak": self.streak,
            "calm": self.num_clear,
            "first": self._first,
            "recent": list(self._recent),
            "rewards": list(self._rewards),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.streak, self.num_clear = state["streak"], state["calm"]
        self.remember_first(state["first"])
        self._recent.extend(state["recent"])
        self._rewards.extend(state["rewards"])


def is_evaluated(metric: str) -> bool:
    """Told by evaluations, not by steps."""
    return metric.startswith("eval/")
