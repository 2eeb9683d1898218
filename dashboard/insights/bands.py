"""Several runs as one line: at each position their mean, its interval, how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.insights.points import Points
from dashboard.insights.series import smooth_all, thin
from dashboard.insights.statistics import (
    Array,
    Estimate,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    mean_interval,
    moments,
    subtract,
    welch_difference,
)

MEAN, IQM = "mean", "iqm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """At the positions that are drawn; each counts every run that has a value there."""

    at: Array
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Aligned:
    """Values of each set, [S, P], at positions that are the same for all of them."""

    at: Array
    sets: list[Array]


def align(sets: Sequence[Sequence[Points]], *, axis: str, smoothing: float) -> Aligned:
    """Over steps, each step that a run has. Else evenly spaced places, as many as the
    run with the most points has, and between two points of a run a straight line;
    nothing before its first or after its last.

    Smoothing goes before: each run by itself, over all of its points.
    """
    every = [points for one in sets for points in one if len(points)]
    if not every:
        return Aligned(at=np.empty(0), sets=[np.empty((len(s), 0)) for s in sets])
    at = _union(every) if axis == "step" else _grid(every)
    place = _by_step if axis == "step" else _between
    return Aligned(
        at=at,
        sets=[
            np.array(
                [place(points, _smoothed(points, smoothing), at) for points in one]
            ).reshape(len(one), len(at))
            for one in sets
        ],
    )


def make_bands(aligned: Aligned, *, statistic: str) -> list[Band]:
    """A band a set, at the at most 1,000 positions that are drawn of it."""
    centre_of, interval_of = _STATISTICS[statistic]
    return [
        _band(aligned.at, values, centre_of, interval_of) for values in aligned.sets
    ]


def make_difference(
    aligned: Aligned, base: int, other: int, *, statistic: str, is_paired: bool
) -> Band:
    """Of set `other` less set `base`, where both have values.

    Paired: run by run, in the order of the sets; the statistic is of the differences.
    """
    ours, theirs = aligned.sets[other], aligned.sets[base]
    centre_of, interval_of = _STATISTICS[statistic]
    if is_paired:
        return _band(aligned.at, subtract(ours, theirs), centre_of, interval_of)
    drawn = _drawn(aligned.at, subtract(centre_of(ours), centre_of(theirs)), 0.0)
    difference = welch_difference if statistic == MEAN else iqm_difference
    estimate = difference(theirs[:, drawn], ours[:, drawn])
    return Band(at=aligned.at[drawn], estimate=estimate)


def _band(
    at: Array,
    values: Array,
    centre_of: Callable[[Array], Array],
    interval_of: Callable[[Array], Estimate],
) -> Band:
    _, _, variance = moments(values)
    spread = np.sqrt(np.nan_to_num(variance))
    drawn = _drawn(at, centre_of(values), spread)
    return Band(at=at[drawn], estimate=interval_of(values[:, drawn]))


def _drawn(at: Array, centre: Array, spread: Array | float) -> NDArray[np.int64]:
    """Of the positions with a value those that keep the band's extremes."""
    there = np.flatnonzero(np.isfinite(centre))
    low, high = centre - spread, centre + spread
    return there[thin(low[there], high[there])]


def _mean(values: Array) -> Array:
    return moments(values)[1]


_STATISTICS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Estimate]]] = {
    MEAN: (_mean, mean_interval),
    IQM: (interquartile_mean, iqm_interval),
}


def _smoothed(points: Points, weight: float) -> Array:
    return smooth_all(points.values, weight) if weight else points.values


def _union(every: Sequence[Points]) -> Array:
    first = every[0].steps
    if all(np.array_equal(points.steps, first) for points in every):
        return first.astype(np.float64)
    steps = np.concatenate([points.steps for points in every])
    return np.unique(steps).astype(np.float64)


def _grid(every: Sequence[Points]) -> Array:
    first = min(points.at[0] for points in every)
    last = max(points.at[-1] for points in every)
    return np.linspace(first, last, max(map(len, every)))


def _by_step(points: Points, values: Array, at: Array) -> Array:
    if len(points) == len(at):  # each of its steps is among them
        return values
    found = np.full(len(at), np.nan)
    found[np.searchsorted(at, points.steps)] = values
    return found


def _between(points: Points, values: Array, at: Array) -> Array:
    if not len(points):
        return np.full(len(at), np.nan)
    return np.interp(at, points.at, values, left=np.nan, right=np.nan)
