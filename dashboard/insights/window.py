"""The last steps that all runs have made: what sets of runs are judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.insights.points import Points
from dashboard.insights.statistics import Array
from dashboard.runs.models import Run

SHARE = 0.1  # of the common steps, where no width is asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Steps first … last, of the `num_common` that every run has made."""

    first: int
    last: int
    num_common: int
    shortest: Run | None  # the run that others have gone beyond

    @property
    def num(self) -> int:
        return self.last - self.first + 1


def find_window(
    runs: Sequence[Run], points: dict[int, Points], wanted: int | None
) -> Window | None:
    """The last `wanted` of the common steps, or a tenth of them.

    Runs without a value do not count. None: no run has one, or no step is common.
    """
    there = [run for run in runs if len(points[run.pk])]
    if not there:
        return None
    ends = {run.pk: int(points[run.pk].steps[-1]) for run in there}
    begin = max(int(points[run.pk].steps[0]) for run in there)
    shortest = min(there, key=lambda run: ends[run.pk])
    last = ends[shortest.pk]
    if last < begin:
        return None
    num = last - begin + 1
    width = min(wanted or math.ceil(SHARE * num), num)
    return Window(
        first=last - width + 1,
        last=last,
        num_common=num,
        shortest=shortest if last < max(ends.values()) else None,
    )


def window_means(
    runs: Sequence[Run], points: dict[int, Points], window: Window | None
) -> Array:
    """[S, 1]: each run's mean over the window; NaN where it has no value in it."""
    return np.array([[_mean(points[run.pk], window)] for run in runs])


def _mean(points: Points, window: Window | None) -> float:
    if window is None:
        return math.nan
    ends = [window.first, window.last + 1]
    first, end = np.searchsorted(points.steps, ends)
    return float(points.values[first:end].mean()) if end > first else math.nan
