"""One metric of one run as the line that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.insights.points import Points
from dashboard.insights.statistics import Array

MAX_POINTS = 1_000
POINTS_PER_BUCKET = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    steps: list[int]
    x: list[float]
    values: list[float]
    smoothed: list[float]


def make_series(points: Points, *, smoothing: float) -> Series:
    """At most 1,000 of the points, spikes kept; what is drawn is what is smoothed."""
    drawn = points.take(thin(points.values, points.values))
    values = drawn.values.tolist()
    return Series(
        steps=drawn.steps.tolist(),
        x=[float(f"{at:.9g}") for at in drawn.at.tolist()],
        values=values,
        smoothed=smooth(values, smoothing),
    )


def thin(low: Array, high: Array) -> NDArray[np.int64]:
    """Which positions are drawn: at most 1,000.

    Of each of equally long stretches the place of its lowest `low`, of its highest
    `high`, and its last; NaN is neither.
    """
    num = len(low)
    if num <= MAX_POINTS:
        return np.arange(num)
    width = -(-num // (MAX_POINTS // POINTS_PER_BUCKET))
    whole = num // width * width
    kept = []
    for part in (slice(0, whole), slice(whole, num)):
        begins = np.arange(part.start, part.stop, width)
        if len(begins):
            lowest = np.where(np.isnan(low[part]), np.inf, low[part])
            highest = np.where(np.isnan(high[part]), -np.inf, high[part])
            kept += [
                begins + lowest.reshape(len(begins), -1).argmin(axis=1),
                begins + highest.reshape(len(begins), -1).argmax(axis=1),
                np.minimum(begins + width, part.stop) - 1,
            ]
    return np.unique(np.concatenate(kept))


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average, freed of its start at 0, as TensorBoard draws it.

    >>> smooth([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    smoothed, last, norm = [], 0.0, 0.0
    for value in values:
        last = weight * last + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        smoothed.append(last / norm)
    return smoothed


def smooth_all(values: Array, weight: float) -> Array:
    """The same of any number of points: sums of 1, 2, 4 … of them, each of two shorter.

    Ends where weight^width is less than a float tells.
    """
    found, norm, width = values * 1.0, np.ones(len(values)), 1
    while width < len(values) and weight**width > 1e-17:
        share = weight**width
        found[width:] += share * found[:-width].copy()
        norm[width:] += share * norm[:-width].copy()
        width *= 2
    return found / norm
