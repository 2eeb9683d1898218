"""The change point of a series, its size and its p-value.

The model is noise around one level, or around one level before a step and another from
it on. The noise and its autocorrelation are measured around a line through each side,
so that a slow drift counts as change, not as noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dashboard.analysis.compare.points import Points
from dashboard.analysis.statistics import CONFIDENCE, Array, subtract, t_quantile

MOST_STRETCHES = 60
FEWEST = 12  # points needed
LEAST_SHARE = 0.05  # of the points, on either side of a change
LEAST_SIDE = 3
MAX_AUTOCORRELATION = 0.95
WINDOW_SHARE = 0.1  # of the points, on either side of a change
LEAST_WINDOW = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A number at each of some steps, which rise."""

    steps: NDArray[np.int64]
    values: Array

    @classmethod
    def of(cls, points: Points) -> Self:
        return cls(steps=points.steps, values=points.values)

    @classmethod
    def known(cls, steps: NDArray[np.int64], values: Array) -> Self:
        """Without values that are not finite."""
        there = np.isfinite(values)
        return cls(steps=steps[there], values=values[there])

    def __len__(self) -> int:
        return len(self.steps)


def rate_of(series: Series) -> Series:
    """The rise per 100 steps, between up to 60 windows of equal length.

    The means of values and steps are compared with those of the previous window; the
    rate is at the first step of its window.
    """
    width = max(1, -(-len(series) // MOST_STRETCHES))
    end = len(series) - len(series) % width
    # A shorter stretch at the end is left out.
    steps = series.steps[:end].reshape(-1, width)
    values = series.values[:end].reshape(-1, width)
    # Differences of numbers that are nearly too large for a float are left out.
    with np.errstate(over="ignore", invalid="ignore"):
        rates = 100 * np.diff(values.mean(axis=1)) / np.diff(steps.mean(axis=1))
    return Series.known(steps=steps[1:, 0], values=rates)


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
    """mean(after) - mean(before), its 95 % interval, and how clear it is.

    low, high: valid for a step chosen in advance. At the step that `split` finds, they
    exclude 0 for half of the series without a change.
    effect: the difference divided by the spread of a point; None without any spread.
    chance: the p-value, how often a series without a change would show one as clear
    somewhere; None if the reader chose the step.
    """

    step: int  # the first step after the change
    before: Window
    after: Window
    difference: float
    low: float
    high: float
    effect: float | None
    chance: float | None


def find_change(
    series: Series, *, at: int | None = None, width: int | None = None
) -> Change | None:
    """The change at step `at`, or where the means of the two sides differ most:

        k = argmax |mean(x[k:]) - mean(x[:k])|·√(k(n-k)/n)

    The reported means cover up to `width` points on each side, by default a tenth of
    all. None: fewer than 12 points, or fewer than 3 on a side of `at`.
    """
    num = len(series)
    if num < FEWEST:
        return None
    # The square of a number above 1e154 overflows.
    scale = float(np.abs(series.values).max()) or 1.0
    values = series.values / scale
    index = split(values) if at is None else _index_of(series, at)
    if index is None:
        return None
    noise = measure_noise(values, index)
    reach = width or max(LEAST_WINDOW, math.ceil(WINDOW_SHARE * num))
    before = _window(series.steps, values, max(0, index - reach), index)
    after = _window(series.steps, values, index, min(num, index + reach))
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
        chance=chance_of(values, noise) if at is None else None,
    )


def split(values: Array) -> int:
    """The index before which the two sides differ most: the maximum-likelihood position
    of one change of the mean in independent normal noise."""
    num = len(values)
    least = max(LEAST_SIDE, math.ceil(LEAST_SHARE * num))
    sizes = np.arange(least, num - least + 1)
    sums = np.cumsum(values)[sizes - 1]
    distances = np.abs(sums / sizes - (values.sum() - sums) / (num - sizes))
    return int(sizes[np.argmax(distances * np.sqrt(sizes * (num - sizes) / num))])


def measure_noise(values: Array, index: int) -> Noise:
    """Noise of the residuals around the least-squares line of each side.

    spread² = Σe²/(n-4). ρ = Σ e[i]·e[i-1] / Σe² is too small by about 8(1 + ρ)/n, as
    two lines are fitted; it is corrected to (n·ρ + 8)/(n - 8) and clipped to [0, 0.95].
    With it, 1 of 100 series without a change is below p = 0.01 if ρ is 0, and up to 10
    if ρ is 0.8 and there are 20 to 40 points.
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


def _detrend(values: Array) -> Array:
    offsets = np.arange(len(values)) - (len(values) - 1) / 2
    level = values - values.mean()
    slope = (offsets @ level) / max(float(offsets @ offsets), 1e-300)
    return np.asarray(level - slope * offsets)


def chance_of(values: Array, noise: Noise) -> float:
    """The p-value: how often noise strays as far from its mean.

    With the partial sums S of x - mean(x), max|S| / (spread·√(n·(1+ρ)/(1-ρ))) converges
    to the maximum of a Brownian bridge (Ploberger and Krämer 1992), so the p-value is
    Kolmogorov's 2·Σ (-1)^(j+1)·exp(-2j²x²).
    """
    if noise.spread == 0:
        return 1.0 if np.ptp(values) == 0 else 0.0
    strayed = float(np.abs(np.cumsum(values - values.mean())).max())
    x = strayed / (noise.spread * math.sqrt(len(values) * noise.factor))
    if x < 0.2:
        return 1.0  # to twelve digits, where the sum converges slowly
    signs = (1.0, -1.0) * 25
    terms = [s * math.exp(-2 * (j * x) ** 2) for j, s in enumerate(signs, 1)]
    return min(1.0, max(0.0, 2 * sum(terms)))


def _margin(noise: Noise, before: int, after: int) -> float:
    """t(0.975, ν)·spread·√((1+ρ)/(1-ρ)·(1/n + 1/m)), ν = (n_all - 4)·(1-ρ)/(1+ρ)."""
    df = np.array([max(1.0, (noise.num - 4) / noise.factor)])
    reach = float(t_quantile((1 + CONFIDENCE) / 2, df)[0])
    return reach * noise.spread * math.sqrt(noise.factor * (1 / before + 1 / after))


def _index_of(series: Series, at: int) -> int | None:
    index = int(np.searchsorted(series.steps, at))
    return index if LEAST_SIDE <= index <= len(series) - LEAST_SIDE else None


def _window(steps: NDArray[np.int64], values: Array, first: int, end: int) -> Window:
    return Window(
        first=int(steps[first]),
        last=int(steps[end - 1]),
        num=end - first,
        mean=float(values[first:end].mean()),
    )
