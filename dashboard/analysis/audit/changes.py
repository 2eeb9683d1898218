"""The change of a series between two windows, with its 95% interval.

The noise and its autocorrelation are measured around a line through each side, so that
a slow drift counts as change, not as noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dashboard.analysis.statistics import CONFIDENCE, Array, subtract, t_quantile
from dashboard.runs.charts.series import Series

FEWEST = 12  # points needed
LEAST_SIDE = 3
NUM_PARTS = 4  # of a run, of which two are compared
FEWEST_OF_RUN = 24  # points
MOST_OF_PART = 50
MAX_AUTOCORRELATION = 0.95
RECENT, MOST_OF_WAY = 5, 0.8  # points, share
WINDOW_SHARE = 0.1  # of the points, on either side of a step
LEAST_WINDOW = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Points of a series, by the steps of its first and its last one."""

    first: int
    last: int
    num: int
    mean: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """spread: the standard deviation of a point; autocorrelation: ρ of a first-order
    autoregression, the share of a point's deviation that the next one has."""

    spread: float
    autocorrelation: float
    num: int

    @property
    def factor(self) -> float:
        """(1+ρ)/(1-ρ): how many points are worth one independent point."""
        return (1 + self.autocorrelation) / (1 - self.autocorrelation)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """mean(after) - mean(before), its 95% interval, and how clear it is.

    effect: the difference divided by the spread of a point; None without any spread.
    """

    step: int  # the first step after the change
    before: Window
    after: Window
    difference: float
    low: float
    high: float
    effect: float | None

    @property
    def is_clear(self) -> bool:
        return not self.low <= 0 <= self.high


def compare_ends(series: Series, *, first: int = 0) -> Change | None:
    """Compare the last quarter of the points with the first one, or with another.

    Of a quarter up to 50 points count, those at the outer end: a reward may be gamed
    early in a long run. None: fewer than 24 points.
    """
    num = len(series)
    width = min(num // NUM_PARTS, MOST_OF_PART)
    if num < FEWEST_OF_RUN:
        return None
    begin, end = first * num // NUM_PARTS, num - width
    both = Series(
        steps=np.append(series.steps[begin : begin + width], series.steps[end:]),
        values=np.append(series.values[begin : begin + width], series.values[end:]),
    )
    return find_change(
        both, at=int(series.steps[end]), width=width, measure=neighbours_noise
    )


def reached(series: Series, change: Change) -> int:
    """Find the first step by which a mean of five points has gone 80% of the way."""
    means = np.convolve(series.values, np.full(RECENT, 1 / RECENT), mode="valid")
    way = (means - change.before.mean) / change.difference
    return int(series.steps[RECENT - 1 + np.argmax(way >= MOST_OF_WAY)])


def find_change(
    series: Series,
    *,
    at: int,
    width: int,
    measure: Callable[[Array, int], Noise] | None = None,
) -> Change | None:
    """Compare the means of up to `width` points on each side of step `at`.

    None: fewer than 12 points, or fewer than 3 on a side of `at`.
    """
    num, index = len(series), int(np.searchsorted(series.steps, at))
    if num < FEWEST or not LEAST_SIDE <= index <= num - LEAST_SIDE:
        return None
    # The square of a number above 1e154 overflows.
    scale = float(np.abs(series.values).max()) or 1.0
    values = series.values / scale
    noise = (measure or measure_noise)(values, index)
    before = _window(series.steps, values, max(0, index - width), index)
    after = _window(series.steps, values, index, min(num, index + width))
    difference = float(subtract(np.array(after.mean), np.array(before.mean)))
    margin = _margin(noise, before.num, after.num)
    return Change(
        step=int(series.steps[index]),
        before=replace(before, mean=scale * before.mean),
        after=replace(after, mean=scale * after.mean),
        difference=scale * difference,
        low=scale * (difference - margin),
        high=scale * (difference + margin),
        effect=difference / noise.spread if noise.spread > 0 else None,
    )


def measure_noise(values: Array, index: int) -> Noise:
    """Noise of the residuals around the least-squares line of each side.

    spread² = Σe²/(n-4). ρ = Σ e[i]·e[i-1] / Σe² is too small by about 8(1 + ρ)/n, as
    two lines are fitted; it is corrected to (n·ρ + 8)/(n - 8) and clipped to [0, 0.95].
    """
    sides = [_detrend(values[:index]), _detrend(values[index:])]
    left = np.concatenate(sides)
    squares = float(left @ left)
    # Rounding errors of points on a line are not noise.
    if squares <= len(values) * (1e-9 * float(np.abs(values).max())) ** 2:
        return Noise(spread=0.0, autocorrelation=0.0, num=len(values))
    num = len(values)
    autocorrelation = sum(float(side[1:] @ side[:-1]) for side in sides) / squares
    autocorrelation = (num * autocorrelation + 8) / (num - 8)
    return Noise(
        spread=math.sqrt(squares / (num - 4)),
        autocorrelation=min(max(autocorrelation, 0.0), MAX_AUTOCORRELATION),
        num=num,
    )


def neighbours_noise(values: Array, index: int) -> Noise:
    """Noise by how neighbours differ within a side: spread² = Σ(x[i] - x[i-1])² / 2n.

    For steps that are independent draws of prompts: however a policy drifts, neither a
    trend nor a curve counts as noise. As exact as 2n/3 independent points (von Neumann
    1941).
    """
    steps = np.concatenate([np.diff(side) for side in (values[:index], values[index:])])
    return Noise(
        spread=math.sqrt(float(steps @ steps) / (2 * len(steps))),
        autocorrelation=0.0,
        num=4 + 2 * len(steps) // 3,
    )


def _detrend(values: Array) -> Array:
    offsets = np.arange(len(values)) - (len(values) - 1) / 2
    level = values - values.mean()
    slope = (offsets @ level) / max(float(offsets @ offsets), 1e-300)
    return np.asarray(level - slope * offsets)


def _margin(noise: Noise, before: int, after: int) -> float:
    """t(0.975, ν)·spread·√((1+ρ)/(1-ρ)·(1/n + 1/m)), ν = (n_all - 4)·(1-ρ)/(1+ρ)."""
    df = np.array([max(1.0, (noise.num - 4) / noise.factor)])
    reach = float(t_quantile((1 + CONFIDENCE) / 2, df)[0])
    return reach * noise.spread * math.sqrt(noise.factor * (1 / before + 1 / after))


def _window(steps: NDArray[np.int64], values: Array, first: int, end: int) -> Window:
    return Window(
        first=int(steps[first]),
        last=int(steps[end - 1]),
        num=end - first,
        mean=float(values[first:end].mean()),
    )
