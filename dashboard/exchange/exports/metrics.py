"""Every point of a run's current history, as a row a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from dashboard.exchange.exports.span import Span
from dashboard.exchange.exports.tables import Record, Table
from dashboard.runs.models import Evaluation, Run, Step

AT_ONCE = 500  # steps, whose values are in memory together
OWN = {"step": pa.int64(), "time": pa.timestamp("us", tz="UTC")}


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at a step, held-out evaluations included."""

    step: int
    time: datetime
    values: dict[str, float]  # those that are numbers


def metric_names(run: Run) -> list[str]:
    """Of steps, in their order, then of evaluations; one query."""
    held_out = Evaluation.objects.filter(run=run, superseded_by=None)
    measured = held_out.order_by("name", "-step").distinct("name")
    names = dict.fromkeys(run.metric_names)
    for metrics in measured.values_list("metrics", flat=True):
        names |= dict.fromkeys(metrics)
    return list(names)


def read_points(run: Run, span: Span) -> Iterator[Point]:
    """By rising step; two queries for some hundred steps each."""
    names, first = run.metric_names, span.first
    while True:
        steps = Step.objects.filter(run=run, superseded_by=None)
        steps = steps.filter(step__range=(first, span.last)).order_by("step")
        found = list(steps.values_list("step", "time", "values")[:AT_ONCE])
        last = found[-1][0] if len(found) == AT_ONCE else span.last
        yield from _merged(names, found, _evaluations(run, first, last))
        if len(found) < AT_ONCE:
            return
        first = last + 1


def _evaluations(run: Run, first: int, last: int) -> list[tuple[int, datetime, Any]]:
    held_out = Evaluation.objects.filter(run=run, superseded_by=None)
    held_out = held_out.filter(step__range=(first, last)).order_by("step", "name")
    return list(held_out.values_list("step", "time", "metrics"))


def _merged(
    names: Sequence[str],
    steps: Sequence[tuple[int, datetime, list[float | None]]],
    evaluations: Sequence[tuple[int, datetime, dict[str, float | None]]],
) -> Iterator[Point]:
    points: dict[int, Point] = {}
    for step, time, metrics in evaluations:
        point = points.setdefault(step, Point(step, time, {}))
        point.values.update(_numbers(metrics))
    for step, time, values in steps:
        told = _numbers(dict(zip(names, values, strict=False)))
        before = points[step].values if step in points else {}
        points[step] = Point(step, time, told | before)
    yield from (points[step] for step in sorted(points))


def _numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    """As floats: of 1e16, which jsonb holds exactly, it gives an integer back."""
    told = {n: float(v) for n, v in metrics.items() if v is not None}
    return {n: v for n, v in told.items() if math.isfinite(v)}


def metrics_table(run: Run, span: Span) -> Table:
    """Columns `step`, `time` and one for each metric, a number or none."""
    names = {name: _free(name) for name in metric_names(run)}
    columns = OWN | {column: pa.float64() for column in names.values()}
    return Table(columns=columns, rows=_rows(run, span, names), maps={})


def _free(name: str) -> str:
    """A metric of an outside trainer may be called as a column of ours."""
    return f"metric/{name}" if name in OWN else name


def _rows(run: Run, span: Span, names: dict[str, str]) -> Iterator[Record]:
    for point in read_points(run, span):
        values = {column: point.values.get(name) for name, column in names.items()}
        yield {"step": point.step, "time": point.time, **values}
