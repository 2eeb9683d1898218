"""Metrics of several runs as numpy arrays: every point, or those that a chart draws.

Of a long run a chart draws evenly spaced steps, and the extremes that its rollups keep:
so what is read does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dashboard.costs.ledger import COST_AXES, Used, read_used
from dashboard.runs.charts import series
from dashboard.runs.charts.chart import clip_all, has_clipped
from dashboard.runs.charts.series import (
    NONE,
    Array,
    Buckets,
    Measured,
    Series,
    begin_of,
    make_buckets,
    read_evaluated,
    read_steps,
    read_thinned,
)
from dashboard.runs.models import Run
from dashboard.runs.queries import Keyed

MAX_WHOLE = 2_000  # steps of a run that is read whole; a chart draws up to 1,000 points
LEAST_FOUND = 0.5  # of a metric's sampled steps; one that is measured rarely is whole
TOTALS = {"tokens": "total/tokens", "samples": "total/completions"}
AXES = {
    "step": "step",
    "time": "minutes since the first step",
    "tokens": "completion tokens sampled",
    "samples": "completions sampled",
    **COST_AXES,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Points(Series):
    """All values are numbers, those beyond ±LARGEST clipped to it."""

    at: Array  # where they lie on the axis
    is_placed: bool = True  # False: the run was not counted on this axis
    is_whole: bool = True  # False: some points of a long run

    def take(self, indices: NDArray[np.int64]) -> Points:
        return replace(
            self,
            steps=self.steps[indices],
            at=self.at[indices],
            values=self.values[indices],
        )

    @property
    def is_clipped(self) -> bool:
        return has_clipped(self.values)


ByRun = dict[int, Points]


def read_points(runs: Sequence[Run], metric: str, *, axis: str) -> ByRun:
    """Read every point, by run. One query; two for held-out scores.

    Held-out scores are measured between steps, so they are placed between them.
    """
    read = read_steps(runs, _read_along([metric], axis))
    return _place(runs, [metric], axis, read)[metric]


def read_drawn(
    runs: Sequence[Run],
    metrics: Sequence[str],
    *,
    axis: str,
    most: int,
    is_aligned: bool = False,
) -> dict[str, ByRun]:
    """Read what a chart draws of each metric: of a long run about `most` points.

    Aligned: at steps that are the same for all runs, for means over them. Otherwise
    with each run's extremes. Two queries; one more for held-out scores, and one for
    each metric that a long run measured rarely.
    """
    names = _read_along(metrics, axis)
    spans = {run.pk: ((run.fork_step or 0) + 1, run.last_step) for run in runs}
    long = {pk: span for pk, span in spans.items() if span[1] - span[0] >= MAX_WHOLE}
    if not is_aligned or not long:
        buckets = dict.fromkeys(spans, Buckets())
        for pk, (first, last) in long.items():
            buckets[pk] = make_buckets(first - 1, last, most)
        read = read_thinned(runs, names, buckets, with_ends=True)
        return _place(runs, metrics, axis, read, thinned=long)
    first, last = min(f for f, _ in spans.values()), max(e for _, e in spans.values())
    # Half as many: those of each run lie beside those of every other.
    even = np.linspace(first, last, most // 2).round().astype(int).tolist()
    grid = sorted({*even, *(end for span in spans.values() for end in span)})
    read = read_steps(runs, names, at=dict.fromkeys(spans, grid))
    for name in names:
        # Whole, where most of the steps have no value, as of every hundredth step.
        rare = []
        for run in runs:
            first, last = spans[run.pk]
            num = sum(first <= step <= last for step in grid)
            is_rare = len(read[run.pk].metrics[name]) < LEAST_FOUND * num
            if name in run.metric_names and is_rare:
                rare.append(run)
        for pk, whole in read_steps(rare, [name]).items():
            read[pk] = Measured(
                times=whole.times, metrics=read[pk].metrics | whole.metrics
            )
    return _place(runs, metrics, axis, read, thinned=spans)


def read_means(
    runs: Sequence[Run], metric: str, points: ByRun, first: int, last: int
) -> dict[int, float]:
    """Read each run's mean over these steps; none without a value. At most one
    query.
    """
    means: dict[int, float] = {}
    long = [run for run in runs if not points[run.pk].is_whole]
    for run in runs:
        at, end = np.searchsorted(points[run.pk].steps, [first, last + 1])
        if end > at and points[run.pk].is_whole:
            means[run.pk] = float(points[run.pk].values[at:end].mean())
    if not long:
        return means
    # What ended runs measured does not change until one is extended.
    read = read_means_once if all(run.has_ended for run in long) else _read_means
    moments = tuple((run.pk, run.attempt, run.seq) for run in long)
    return means | read(Keyed((metric, *moments), (long, metric)), first, last)


def _read_means(
    keyed: Keyed[tuple[Sequence[Run], str]], first: int, last: int
) -> dict[int, float]:
    """Read all rows of the window, as the rollups hold no sums."""
    runs, metric = keyed.value
    window = Buckets(first=first, last=last)
    return series.read_means(runs, metric, {run.pk: window for run in runs})


read_means_once = lru_cache(maxsize=32)(_read_means)


def _read_along(metrics: Sequence[str], axis: str) -> list[str]:
    """List the metrics of steps, and the one that counts along the axis."""
    names = [metric for metric in metrics if not metric.startswith("eval/")]
    return [*names, *([TOTALS[axis]] if axis in TOTALS else [])]


def _place(
    runs: Sequence[Run],
    metrics: Sequence[str],
    axis: str,
    read: Mapping[int, Measured],
    *,
    thinned: Collection[int] = (),
) -> dict[str, ByRun]:
    evaluated = read_evaluated(runs, metrics)
    used = read_used(runs, axis) if axis in COST_AXES else {}
    placed: dict[str, ByRun] = {metric: {} for metric in metrics}
    for run in runs:
        measured = read[run.pk]
        clock = _clock_of(run, axis, measured, used)
        for metric in metrics:
            points = (evaluated[run.pk] | measured.metrics).get(metric, NONE)
            steps = points.steps.astype(np.float64)
            is_placed = True
            if axis == "step" or not len(points):
                at = steps
            elif len(clock):
                at = np.interp(steps, clock.steps, clock.values)
            # No one knows how many completions an imported run sampled in a step.
            elif axis == "samples" and not run.is_imported:
                rollout = run.config["rollout"]
                at = steps * rollout["prompts_per_step"] * rollout["group_size"]
            else:
                points, at, is_placed = NONE, NONE.values, False
            placed[metric][run.pk] = Points(
                steps=points.steps,
                at=at,
                values=clip_all(points.values),
                is_placed=is_placed,
                is_whole=run.pk not in thinned or metric in evaluated[run.pk],
            )
    return placed


def _clock_of(
    run: Run, axis: str, measured: Measured, used: Mapping[int, Used]
) -> Series:
    """Place steps on the axis: in minutes since the first step, or as counted.

    A fork continues its parent's time.
    """
    times = measured.times
    if axis in TOTALS:
        total = measured.metrics[TOTALS[axis]]
        return Series(steps=total.steps, values=clip_all(total.values))
    if axis == "step" or not len(times):
        return NONE
    if axis in COST_AXES:
        if run.pk not in used:  # it has no price, or other currencies
            return NONE
        return Series(steps=times.steps, values=used[run.pk](times.values))
    begin = begin_of(
        list(zip(times.steps[:2].tolist(), times.values[:2].tolist(), strict=True)),
        fork_step=run.fork_step,
        carried=run.fork_totals or {},
    )
    return Series(steps=times.steps, values=(times.values - begin) / 60)
