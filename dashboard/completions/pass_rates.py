"""Pass rates of each prompt of a run: now, at first, and overall.

A prompt's visits are its groups with a scored completion; a visit is right if one of
its completions is. The last visits are the last N, or all if there are fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dashboard.completions.prompt_visits import Visits

Kind = Literal["never", "solved", "always", "forgotten", "oscillating", "unscored"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NONE = -1  # instead of a step, where there is none

TALLY = np.dtype(
    [
        ("prompt", np.int64),
        ("num_seen", np.int64),  # groups, with a score or without
        ("last_step", np.int64),  # of them
        ("num_visits", np.int64),
        ("num_scored", np.int64),  # completions of the last visits, and the right ones
        ("num_right", np.float64),  # a fraction where rewards are graded
        ("change", np.float64),  # of the share that is right; NaN before two visits
        ("solved_at", np.int64),  # the first right visit's step
        ("forgotten_at", np.int64),  # the first visit's after the last right one
        ("kind", np.int64),  # index in KINDS
    ]
)
Tallies = NDArray[np.void]
Numbers = NDArray[np.int64]
Shares = NDArray[np.float64]


def tally(visits: Visits, *, num_last: int) -> Tallies:
    """Tally one record per sampled prompt, by number.

    change: the share right of the last k visits less that of the first k, where
        k = min(num_last, visits // 2).
    never: no visit was right.
    forgotten: one was right, of the last num_last visits none.
    oscillating: of the last num_last visits at least one was right, and at least one
        was wrong after any right one.
    always: all completions of the last num_last visits were right.
    solved: all others: right at each of the last num_last visits since the first right.
    unscored: no visit.

    Of one prompt, num_last = 2, at steps 10 to 50 right of 4: 0 1 2 0 0. So 0 of 8,
    change 0/8 - 1/8, solved at 20, forgotten from 40 on.
    """
    prompts, begin, num_seen = np.unique(
        visits["prompt"], return_index=True, return_counts=True
    )
    is_scored = visits["num_scored"] > 0
    scored = visits if is_scored.all() else visits[is_scored]
    count = _Count(scored)
    start = np.searchsorted(scored["prompt"], prompts)
    end = np.searchsorted(scored["prompt"], prompts, side="right")
    last = np.maximum(start, end - num_last)
    few = np.minimum(num_last, (end - start) // 2)

    tallies = np.empty(len(prompts), TALLY)
    tallies["prompt"], tallies["num_seen"] = prompts, num_seen
    tallies["last_step"] = visits["step"][begin + num_seen - 1]
    tallies["num_visits"] = end - start
    tallies["num_scored"] = count.scored(last, end)
    tallies["num_right"] = count.right(last, end)
    tallies["change"] = count.share(end - few, end) - count.share(start, start + few)
    first_right, last_right = count.ends_of_right(start, end)
    tallies["solved_at"] = _step_at(scored, first_right, first_right >= 0)
    is_forgotten = (last_right >= 0) & (last_right < last)
    tallies["forgotten_at"] = _step_at(scored, last_right + 1, is_forgotten)
    wrong_since = count.wrong_visits(np.maximum(first_right, last), end)
    tallies["kind"] = np.select(
        [
            end == start,
            first_right < 0,
            is_forgotten,
            wrong_since > 0,
            tallies["num_right"] == tallies["num_scored"],
        ],
        [
            KINDS.index("unscored"),
            KINDS.index("never"),
            KINDS.index("forgotten"),
            KINDS.index("oscillating"),
            KINDS.index("always"),
        ],
        KINDS.index("solved"),
    )
    return tallies


class _Count:
    """Sums over stretches of visits, from `start` until before `end`."""

    def __init__(self, visits: Visits) -> None:
        self._scored = _running(visits["num_scored"])
        right = visits["num_right"]
        self._right: Shares = np.concatenate(
            [[0.0], np.cumsum(right, dtype=np.float64)]
        )
        self._wrong_visits = _running(visits["num_right"] == 0)
        self._right_at = np.flatnonzero(visits["num_right"])

    def scored(self, start: Numbers, end: Numbers) -> Numbers:
        return self._scored[end] - self._scored[start]

    def right(self, start: Numbers, end: Numbers) -> Shares:
        return self._right[end] - self._right[start]

    def wrong_visits(self, start: Numbers, end: Numbers) -> Numbers:
        return self._wrong_visits[end] - self._wrong_visits[start]

    def share(self, start: Numbers, end: Numbers) -> Shares:
        """NaN of none."""
        scored = self.scored(start, end)
        return _divide(self.right(start, end), scored)

    def ends_of_right(self, start: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
        """Indices of the first and the last right visit; -1 without one."""
        after = np.searchsorted(self._right_at, start)
        before = np.searchsorted(self._right_at, end) - 1
        indices = np.append(self._right_at, NONE)  # so that index -1 is valid
        has_some = before >= after
        return (
            np.where(has_some, indices[after], NONE),
            np.where(has_some, indices[before], NONE),
        )


def _running(values: NDArray[np.generic]) -> Numbers:
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def _divide(right: Shares, scored: Numbers) -> Shares:
    """NaN of none."""
    shares = np.full(len(scored), np.nan)
    np.divide(right, scored, out=shares, where=scored > 0)
    return shares


def _step_at(visits: Visits, indices: Numbers, is_there: NDArray[np.bool_]) -> Numbers:
    steps = np.full(len(indices), NONE)
    steps[is_there] = visits["step"][indices[is_there]]
    return steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Numbers of sampled prompts, by class."""

    seen: int
    kinds: dict[Kind, int]


def count_prompts(tallies: Tallies) -> Counts:
    by_kind = np.bincount(tallies["kind"], minlength=len(KINDS)).tolist()
    return Counts(
        seen=len(tallies),
        kinds=dict(zip(KINDS, by_kind, strict=True)),
    )


GAP = 0.01  # percentage points: a bin's end is that of the next less this
BINS = (
    (0.0, 0.0),
    (GAP, 10 - GAP),
    *((float(low), low + 10 - GAP) for low in range(10, 100, 10)),
    (100.0, 100.0),
)


def count_bins(tallies: Tallies) -> list[tuple[float, float, int]]:
    """Bounds in percent, and the number of prompts that `select` finds by them."""
    return [(low, high, len(select(tallies, low=low, high=high))) for low, high in BINS]


def select(tallies: Tallies, *, low: float, high: float) -> Tallies:
    """Prompts with a pass rate of low to high percent."""
    right, scored = tallies["num_right"], tallies["num_scored"]
    # Multiplied out, so that a share of exactly the bound is within it.
    return tallies[
        (scored > 0) & (right * 100 >= low * scored) & (right * 100 <= high * scored)
    ]


def select_kind(tallies: Tallies, kind: Kind) -> Tallies:
    found: Tallies = tallies[tallies["kind"] == KINDS.index(kind)]
    return found


def sort(tallies: Tallies, by: str) -> Tallies:
    """Sort by pass, change, solved, times or prompt; a leading minus reverses.

    Missing values are last, ties by prompt.
    """
    key = KEYS[by.removeprefix("-")](tallies)
    if by.startswith("-"):
        key = -key
    # numpy puts NaN behind all numbers.
    found: Tallies = tallies[np.lexsort((tallies["prompt"], key))]
    return found


KEYS: dict[str, Callable[[Tallies], Shares]] = {
    "pass": lambda tallies: _divide(tallies["num_right"], tallies["num_scored"]),
    "change": lambda tallies: tallies["change"],
    "solved": lambda tallies: np.where(
        tallies["solved_at"] == NONE, np.nan, tallies["solved_at"]
    ),
    "times": lambda tallies: tallies["num_seen"].astype(np.float64),
    "prompt": lambda tallies: tallies["prompt"].astype(np.float64),
}
