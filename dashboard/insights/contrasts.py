"""Each set beside the baseline: last, best, and a window's mean, with a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.insights.bands import IQM
from dashboard.insights.directions import Better
from dashboard.insights.points import Points
from dashboard.insights.sets import RunSet
from dashboard.insights.standings import Figure, make_figures
from dashboard.insights.statistics import Estimate, iqm_interval, mean_interval
from dashboard.insights.verdicts import Verdict, judge
from dashboard.insights.window import Window, window_means
from dashboard.runs.models import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """A set's figures are of its runs' own; that of the window has an interval."""

    set: RunSet
    num: int  # runs with values in the window
    last: Figure
    best: Figure
    window: Figure
    interval: tuple[float, float] | None
    verdict: Verdict | None  # None: the baseline


def can_pair(base: RunSet, other: RunSet) -> bool:
    """Whether each seed is in both sets, once."""
    ours, theirs = ([str(seed) for seed in one.seeds] for one in (base, other))
    return sorted(ours) == sorted(theirs) and len(set(ours)) == len(ours) > 1


def by_seed(one: RunSet) -> list[Run]:
    return sorted(one.runs, key=lambda run: str(run.config.get("seed")))


def make_contrasts(
    sets: Sequence[RunSet],
    points: dict[int, Points],
    window: Window | None,
    *,
    better: Better,
    statistic: str,
    wants_pairs: bool,
) -> list[Contrast]:
    """The first set is the baseline."""
    values = {
        "last": [_mean_of(one, points, _last) for one in sets],
        "best": [_mean_of(one, points, lambda p: _best(p, better)) for one in sets],
    }
    estimates = [_window(one, points, window, statistic) for one in sets]
    values["window"] = [_number(estimate.value[0]) for estimate in estimates]
    nums = [int(estimate.num[0]) for estimate in estimates]
    figures = {
        name: make_figures(found, nums, better) for name, found in values.items()
    }
    return [
        Contrast(
            set=one,
            num=int(estimates[i].num[0]),
            interval=_interval(estimates[i]),
            verdict=None
            if i == 0
            else judge(
                window_means(by_seed(sets[0]), points, window),
                window_means(by_seed(one), points, window),
                statistic=statistic,
                better=better,
                is_paired=wants_pairs and can_pair(sets[0], one),
            ),
            **{name: found[i] for name, found in figures.items()},
        )
        for i, one in enumerate(sets)
    ]


def _window(
    one: RunSet, points: dict[int, Points], window: Window | None, statistic: str
) -> Estimate:
    interval_of = iqm_interval if statistic == IQM else mean_interval
    return interval_of(window_means(one.runs, points, window))


def _mean_of(
    one: RunSet, points: dict[int, Points], figure: Callable[[Points], float]
) -> float | None:
    """Over the runs that have values."""
    found = [figure(points[run.pk]) for run in one.runs if len(points[run.pk])]
    return _number(float(np.mean(found))) if found else None


def _last(points: Points) -> float:
    return float(points.values[-1])


def _best(points: Points, better: Better) -> float:
    if better == "neither":
        return math.nan
    values = points.values
    return float(values.max() if better == "higher" else values.min())


def _interval(estimate: Estimate) -> tuple[float, float] | None:
    low, high = float(estimate.low[0]), float(estimate.high[0])
    return None if math.isnan(low) else (low, high)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
