"""A comparison of runs: curves, summary values and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dashboard.analysis.compare.figures import (
    draw_bands,
    draw_differences,
    draw_small,
    overlay,
)
from dashboard.analysis.compare.points import Points, read_drawn
from dashboard.analysis.compare.seeds import (
    STATISTICS,
    Arrangement,
    ConfidenceBand,
    RunSet,
    align,
    by_seed,
    can_pair,
    make_bands,
    make_difference,
)
from dashboard.analysis.compare.selection import CompareForm, line_styles
from dashboard.analysis.compare.series import (
    MAX_POINTS,
    Better,
    Series,
    Window,
    declare,
    find_window,
    make_series,
    window_means,
)
from dashboard.analysis.compare.verdicts import Figure, Verdict, judge, make_figures
from dashboard.analysis.statistics import Array
from dashboard.runs.charts.chart import NOTE, clip
from dashboard.runs.models import MetricSummary, Run
from trainer.metric_names import title_of

SMOOTHING = 0.6  # of single runs; bands are not smoothed by default
SMOOTHED_FROM = 50  # points; a short curve would lie beside its points
SMALL_POINTS = 300  # of a line of a small chart, which is as many pixels wide
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


def compare_with_baseline(
    sets: Sequence[RunSet],
    metric: str,
    points: dict[int, Points],
    window: Window | None,
    *,
    better: Better,
    statistic: str,
    wants_pairs: bool,
) -> list[BaselineComparison]:
    """Compare each set with the first. At most two queries, for long runs."""
    runs = [run for run_set in sets for run in run_set.runs]
    means = window_means(runs, metric, points, window)
    last = {pk: float(own.values[-1]) for pk, own in points.items() if len(own)}
    best = _best(runs, metric, points, better)
    values = {
        "last": [_mean_of(run_set, last) for run_set in sets],
        "best": [_mean_of(run_set, best) for run_set in sets],
    }
    _, interval_of, _ = STATISTICS[statistic]
    estimates = [interval_of(_column(run_set.runs, means)) for run_set in sets]
    values["window"] = [_number(estimate.value[0]) for estimate in estimates]
    nums = [int(estimate.num[0]) for estimate in estimates]
    figures = {
        name: make_figures(numbers, nums, better) for name, numbers in values.items()
    }
    return [
        BaselineComparison(
            set=run_set,
            num=int(estimates[i].num[0]),
            interval=estimates[i].interval,
            verdict=None
            if i == 0
            else judge(
                _column(by_seed(sets[0]), means),
                _column(by_seed(run_set), means),
                statistic=statistic,
                better=better,
                is_paired=wants_pairs and can_pair(sets[0], run_set),
            ),
            **{name: numbers[i] for name, numbers in figures.items()},
        )
        for i, run_set in enumerate(sets)
    ]


def _column(runs: Sequence[Run], values: dict[int, float]) -> Array:
    """[S, 1]: each run's value."""
    return np.array([[values[run.pk]] for run in runs])


def _mean_of(run_set: RunSet, values: dict[int, float]) -> float | None:
    """Over the runs that have a value."""
    measured = [values[run.pk] for run in run_set.runs if run.pk in values]
    return _number(float(np.mean(measured))) if measured else None


def _best(
    runs: Sequence[Run], metric: str, points: dict[int, Points], better: Better
) -> dict[int, float]:
    """Read the best value of each run; of a long run, of which some points were read,
    as its summary keeps it.
    """
    if better == "neither":
        return {run.pk: math.nan for run in runs if len(points[run.pk])}
    end = "high" if better == "higher" else "low"
    pick = np.max if better == "higher" else np.min
    best = {pk: float(pick(own.values)) for pk, own in points.items() if len(own)}
    long = [run.pk for run in runs if not points[run.pk].is_whole]
    if long:
        summaries = MetricSummary.objects.filter(run__in=long, name=metric)
        best |= {pk: clip(value) for pk, value in summaries.values_list("run_id", end)}
    return best


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """A line each run, where no set has several; else a band each set."""

    lines: list[Series] = field(default_factory=list)
    bands: list[ConfidenceBand] = field(default_factory=list)
    differences: list[ConfidenceBand] = field(default_factory=list)  # each other set's
    # Runs behind the bands, and those of a set with too few for a band.
    members: list[tuple[RunSet, Run, Series]] = field(default_factory=list)


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
    """Make one query; up to five for long runs and on some axes."""
    metric = form.value("metric")
    points = _read(arrangement, [metric], form, most=MAX_POINTS)[metric]
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
            metric,
            points,
            window,
            better=better,
            statistic=form.value("stat"),
            wants_pairs=bool(form.value("paired")),
        ),
        window=window,
        better=better,
        pairable=[
            run_set for run_set in arrangement.sets[1:] if can_pair(base, run_set)
        ],
        uncounted=[run for run in arrangement.runs if not points[run.pk].is_placed],
        note=NOTE if any(points[run.pk].is_clipped for run in arrangement.runs) else "",
    )


def _read(
    arrangement: Arrangement, metrics: Sequence[str], form: CompareForm, *, most: int
) -> dict[str, dict[int, Points]]:
    return read_drawn(
        arrangement.runs,
        metrics,
        axis=form.value("x"),
        most=most,
        is_aligned=arrangement.has_bands,
    )


def draw_charts(
    arrangement: Arrangement, form: CompareForm, metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Draw a small chart of each metric; the queries of `read_drawn`."""
    points = _read(arrangement, metrics, form, most=SMALL_POINTS)
    styles = line_styles(run_set.pk for run_set in arrangement.sets)
    charts = []
    for metric in metrics:
        curves = _measure(
            arrangement, points[metric], form, has_each=False, most=SMALL_POINTS
        )
        traces = draw_small(
            arrangement.sets,
            curves.lines,
            curves.bands,
            styles,
            members=curves.members,
            axis=form.value("x"),
        )
        title = title_of(metric)
        charts.append({"metric": metric, "title": title, "data": traces})
    return charts


def _measure(
    arrangement: Arrangement,
    points: dict[int, Points],
    form: CompareForm,
    *,
    has_each: bool,
    most: int = MAX_POINTS,
) -> Curves:
    smoothing, axis = smoothing_of(arrangement, form), form.value("x")
    if not arrangement.has_bands:
        runs = arrangement.runs
        if form.value("smooth") is None and most < MAX_POINTS:
            is_long = any(len(own) >= SMOOTHED_FROM for own in points.values())
            smoothing = smoothing if is_long else 0.0
        return Curves(
            lines=[
                make_series(points[run.pk], smoothing=smoothing, most=most)
                for run in runs
            ]
        )
    sets = arrangement.sets
    # By seed, so that the rows of two sets are pairs.
    aligned = align(
        [[points[run.pk] for run in by_seed(run_set)] for run_set in sets],
        axis=axis,
        smoothing=smoothing,
    )
    behind = [
        (run_set, run)
        for run_set in sets
        for run in by_seed(run_set)
        if not run_set.is_single and (has_each or not run_set.has_band)
    ]
    return Curves(
        bands=make_bands(aligned, statistic=form.value("stat"), most=most),
        differences=[
            make_difference(
                aligned,
                0,
                index,
                statistic=form.value("stat"),
                is_paired=bool(form.value("paired")) and can_pair(sets[0], run_set),
            )
            for index, run_set in enumerate(sets[1:], start=1)
        ]
        if most == MAX_POINTS
        else [],
        members=[
            (run_set, run, make_series(points[run.pk], smoothing=smoothing, most=most))
            for run_set, run in behind
        ],
    )


def _draw(
    arrangement: Arrangement, curves: Curves, form: CompareForm
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    metric, axis, log_y = (
        form.value("metric"),
        form.value("x"),
        form.value("y") == "log",
    )
    sets = arrangement.sets
    styles = line_styles(run_set.pk for run_set in sets)
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
