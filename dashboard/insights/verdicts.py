"""Whether two sets of seeds can be told apart, and how many more it would take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dashboard.insights.bands import IQM
from dashboard.insights.directions import Better
from dashboard.insights.statistics import (
    MOST_SEEDS,
    Array,
    Estimate,
    iqm_difference,
    iqm_interval,
    mean_interval,
    moments,
    seeds_needed,
    subtract,
    welch_difference,
)

Kind = Literal["none", "one", "open", "same", "better", "worse", "apart"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    kind: Kind
    text: str
    # Of other less base, with its interval; None where there is none.
    difference: float | None = None
    interval: tuple[float, float] | None = None
    is_paired: bool = False


def judge(
    base: Array, other: Array, *, statistic: str, better: Better, is_paired: bool
) -> Verdict:
    """Both are [S, 1], a value of the window for each run; pairs are of one row."""
    if is_paired:
        base, other = _pairs(base, other)
    nums = _count(base), _count(other)
    if 0 in nums:
        return Verdict(kind="none", text="no values in the window")
    found = _difference(base, other, statistic=statistic, is_paired=is_paired)
    kind, text = _say(found, base, other, nums, better, is_paired=is_paired)
    low, high = float(found.low[0]), float(found.high[0])
    return Verdict(
        kind=kind,
        text=text,
        difference=float(found.value[0]),
        interval=None if math.isnan(low) else (low, high),
        is_paired=is_paired,
    )


def _pairs(base: Array, other: Array) -> tuple[Array, Array]:
    there = np.isfinite(base - other)
    return np.where(there, base, np.nan), np.where(there, other, np.nan)


def _count(values: Array) -> int:
    return int(np.isfinite(values).sum())


def _difference(
    base: Array, other: Array, *, statistic: str, is_paired: bool
) -> Estimate:
    if is_paired:
        return (iqm_interval if statistic == IQM else mean_interval)(
            subtract(other, base)
        )
    return (iqm_difference if statistic == IQM else welch_difference)(base, other)


def _say(
    found: Estimate,
    base: Array,
    other: Array,
    nums: tuple[int, int],
    better: Better,
    *,
    is_paired: bool,
) -> tuple[Kind, str]:
    value, low, high = found.value[0], found.low[0], found.high[0]
    if min(nums) == 1:
        whose = "each" if nums == (1, 1) else "in one of the two"
        return "one", f"one run {whose}: no test"
    if low == high == 0:
        return "same", "equal in every seed"
    if low <= 0 <= high:
        more = _more(value, base, other, nums, is_paired=is_paired)
        return "open", f"not distinguishable yet: {more}"
    word = "higher" if value > 0 else "lower"
    if better == "neither":
        return "apart", f"distinguishable: {word}"
    is_better = word == better
    return (
        ("better", "distinguishable: better")
        if is_better
        else (
            "worse",
            "distinguishable: worse",
        )
    )


def _more(
    difference: float,
    base: Array,
    other: Array,
    nums: tuple[int, int],
    *,
    is_paired: bool,
) -> str:
    if is_paired:
        variances = (float(moments(subtract(other, base))[2][0]), 0.0)
    else:
        variances = (float(moments(base)[2][0]), float(moments(other)[2][0]))
    needed = seeds_needed(float(difference), variances, is_paired=is_paired)
    if needed is None:
        return f"more than {MOST_SEEDS:,} more seeds each"
    if nums[0] == nums[1]:
        more = max(1, needed - nums[0])
        return f"about {more} more seed{'s' if more > 1 else ''} each"
    return f"about {max(needed, max(nums) + 1)} seeds each are needed"
