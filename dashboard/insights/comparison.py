"""All that the curves of a comparison and the numbers beside them are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dashboard.insights.band_figures import draw_bands, draw_differences
from dashboard.insights.bands import Aligned, Band, align, make_bands, make_difference
from dashboard.insights.contrasts import Contrast, by_seed, can_pair, make_contrasts
from dashboard.insights.directions import Better, declare
from dashboard.insights.figures import overlay
from dashboard.insights.forms import CompareForm
from dashboard.insights.marks import mark_runs
from dashboard.insights.points import Points, read_points
from dashboard.insights.series import Series, make_series
from dashboard.insights.sets import Arrangement, RunSet
from dashboard.insights.window import Window, find_window
from dashboard.runs.charts.chart import NOTE
from dashboard.runs.models import Run

SMOOTHING = 0.6  # of single runs; a band is shown as it was measured
MAX_EACH = 30  # runs drawn behind their bands


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """A line each run, where no set has several; else a band each set."""

    lines: list[Series] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    differences: list[Band] = field(default_factory=list)  # each other set's
    members: list[tuple[RunSet, Series]] = field(default_factory=list)  # of the bands


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    curves: Curves
    figure: dict[str, Any]
    differences: dict[str, Any] | None  # None: there are no two sets with bands
    contrasts: list[Contrast]
    window: Window | None
    better: Better
    pairable: list[RunSet]  # with the baseline
    uncounted: list[Run]  # on the axis that is asked for
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
        contrasts=make_contrasts(
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


def _differences(sets: list[RunSet], aligned: Aligned, form: CompareForm) -> list[Band]:
    return [
        make_difference(
            aligned,
            0,
            place,
            statistic=form.value("stat"),
            is_paired=bool(form.value("paired")) and can_pair(sets[0], one),
        )
        for place, one in enumerate(sets[1:], start=1)
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
    marks = mark_runs(one.pk for one in sets)
    if not arrangement.has_bands:
        figure = overlay(
            arrangement.runs,
            curves.lines,
            marks,
            metric=metric,
            axis=axis,
            smoothing=smoothing_of(arrangement, form),
            log_y=log_y,
        )
        return figure, None
    figure = draw_bands(
        sets,
        curves.bands,
        marks,
        members=curves.members,
        metric=metric,
        axis=axis,
        log_y=log_y,
    )
    if not curves.differences:
        return figure, None
    return figure, draw_differences(
        sets, curves.differences, marks, metric=metric, axis=axis
    )
