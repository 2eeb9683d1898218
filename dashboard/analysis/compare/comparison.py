"""A comparison of runs: curves, summary values and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dashboard.analysis.compare.figures import draw_bands, draw_differences, overlay
from dashboard.analysis.compare.points import Points, read_points
from dashboard.analysis.compare.seeds import (
    IQM,
    Aligned,
    Arrangement,
    ConfidenceBand,
    RunSet,
    align,
    make_bands,
    make_difference,
)
from dashboard.analysis.compare.selection import CompareForm, line_styles
from dashboard.analysis.compare.series import (
    Better,
    Series,
    Window,
    declare,
    find_window,
    make_series,
    window_means,
)
from dashboard.analysis.compare.verdicts import Figure, Verdict, judge, make_figures
from dashboard.analysis.statistics import Estimate, iqm_interval, mean_interval
from dashboard.runs.charts.chart import NOTE
from dashboard.runs.models import Run

SMOOTHING = 0.6  # of single runs; bands are not smoothed by default
MAX_EACH = 30  # runs drawn behind their bands


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineComparison:
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


def compare_with_baseline(
    sets: Sequence[RunSet],
    points: dict[int, Points],
    window: Window | None,
    *,
    better: Better,
    statistic: str,
    wants_pairs: bool,
) -> list[BaselineComparison]:
    """The first set is the baseline."""
    values = {
        "last": [_mean_of(one, points, lambda p: float(p.values[-1])) for one in sets],
        "best": [_mean_of(one, points, lambda p: _best(p, better)) for one in sets],
    }
    estimates = [_window(one, points, window, statistic) for one in sets]
    values["window"] = [_number(estimate.value[0]) for estimate in estimates]
    nums = [int(estimate.num[0]) for estimate in estimates]
    figures = {
        name: make_figures(found, nums, better) for name, found in values.items()
    }
    return [
        BaselineComparison(
            set=one,
            num=int(estimates[i].num[0]),
            interval=estimates[i].interval,
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


def _best(points: Points, better: Better) -> float:
    if better == "neither":
        return math.nan
    values = points.values
    return float(values.max() if better == "higher" else values.min())


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """A line each run, where no set has several; else a band each set."""

    lines: list[Series] = field(default_factory=list)
    bands: list[ConfidenceBand] = field(default_factory=list)
    differences: list[ConfidenceBand] = field(default_factory=list)  # each other set's
    members: list[tuple[RunSet, Series]] = field(default_factory=list)  # of the bands


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    curves: Curves
    figure: dict[str, Any]
    differences: dict[str, Any] | None  # None: fewer than two sets with bands
    contrasts: list[BaselineComparison]
    window: Window | None
    better: Better
    pairable: list[RunSet]  # with the baseline
    uncounted: list[Run]  # on the chosen axis
    has_each: bool  # single runs are drawn behind the bands
    note: str  # that values are clipped, or ""


def smoothing_of(arrangement: Arrangement, form: CompareForm) -> float:
    chosen: float | None = form.value("smooth")
    if chosen is not None:
        return chosen
    return 0.0 if arrangement.has_bands else SMOOTHING


def better_of(arrangement: Arrangement, form: CompareForm) -> Better:
    chosen: Better | None = form.value("better")
    return chosen or declare(form.value("metric"), arrangement.runs[0].config)


def compare_runs(arrangement: Arrangement, form: CompareForm) -> Comparison:
    """One query; three on some axes."""
    points = read_points(arrangement.runs, form.value("metric"), axis=form.value("x"))
    window = find_window(arrangement.runs, points, form.value("window"))
    better = better_of(arrangement, form)
    base = arrangement.sets[0]
    has_each = bool(form.value("each")) and arrangement.num_runs <= MAX_EACH
    curves = _measure(arrangement, points, form, has_each=has_each)
    figure, differences = _draw(arrangement, curves, form)
    return Comparison(
        curves=curves,
        figure=figure,
        differences=differences,
        contrasts=compare_with_baseline(
            arrangement.sets,
            points,
            window,
            better=better,
            statistic=form.value("stat"),
            wants_pairs=bool(form.value("paired")),
        ),
        window=window,
        better=better,
        pairable=[one for one in arrangement.sets[1:] if can_pair(base, one)],
        uncounted=[run for run in arrangement.runs if not points[run.pk].is_placed],
        has_each=has_each and arrangement.has_bands,
        note=NOTE if any(points[run.pk].is_clipped for run in arrangement.runs) else "",
    )


def _measure(
    arrangement: Arrangement,
    points: dict[int, Points],
    form: CompareForm,
    *,
    has_each: bool,
) -> Curves:
    smoothing, axis = smoothing_of(arrangement, form), form.value("x")
    if not arrangement.has_bands:
        runs = arrangement.runs
        lines = [make_series(points[r.pk], smoothing=smoothing) for r in runs]
        return Curves(lines=lines)
    sets = arrangement.sets
    # By seed, so that the rows of two sets are pairs.
    rows = [[points[run.pk] for run in by_seed(one)] for one in sets]
    aligned = align(rows, axis=axis, smoothing=smoothing)
    behind = [(one, run) for one in sets for run in one.runs if not one.is_single]
    return Curves(
        bands=make_bands(aligned, statistic=form.value("stat")),
        differences=_differences(sets, aligned, form),
        members=[
            (one, make_series(points[run.pk], smoothing=smoothing))
            for one, run in behind
        ]
        if has_each
        else [],
    )


def _differences(
    sets: list[RunSet], aligned: Aligned, form: CompareForm
) -> list[ConfidenceBand]:
    return [
        make_difference(
            aligned,
            0,
            index,
            statistic=form.value("stat"),
            is_paired=bool(form.value("paired")) and can_pair(sets[0], one),
        )
        for index, one in enumerate(sets[1:], start=1)
    ]


def _draw(
    arrangement: Arrangement, curves: Curves, form: CompareForm
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    metric, axis, log_y = (
        form.value("metric"),
        form.value("x"),
        form.value("y") == "log",
    )
    sets = arrangement.sets
    styles = line_styles(one.pk for one in sets)
    if not arrangement.has_bands:
        figure = overlay(
            arrangement.runs,
            curves.lines,
            styles,
            metric=metric,
            axis=axis,
            smoothing=smoothing_of(arrangement, form),
            log_y=log_y,
        )
        return figure, None
    figure = draw_bands(
        sets,
        curves.bands,
        styles,
        members=curves.members,
        metric=metric,
        axis=axis,
        log_y=log_y,
    )
    if not curves.differences:
        return figure, None
    return figure, draw_differences(
        sets, curves.differences, styles, metric=metric, axis=axis
    )
