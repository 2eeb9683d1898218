"""Series of a run's metrics, thinned in the database so that spikes stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from dashboard.runs.charts.bounds import find_bounds
from dashboard.runs.charts.thinning import (
    COLUMNS_PER_METRIC,
    POINTS_PER_BUCKET,
    bucket_width,
    read_thinned,
)
from dashboard.runs.models import Evaluation, Run, Step

MAX_POINTS = 1_000
# Of a curve that is thinned anyway: more than a screen shows, and half the bytes.
DIGITS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values that are numbers, by rising step."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """When steps ended, in seconds since 1970; between two of them, interpolate."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    curves: dict[str, Curve]
    clock: Clock
    width: int  # of the buckets that steps were thinned to; 1: all are there

    @property
    def is_thinned(self) -> bool:
        return self.width > 1


def read_history(
    run: Run,
    metrics: Sequence[str],
    *,
    max_points: int = MAX_POINTS,
    first_step: int | None = None,
    last_step: int | None = None,
    superseded_by: int | None = None,
) -> History:
    """Two or three queries: where the steps lie, what is rolled up, their values.

    With `superseded_by` the steps that this epoch went back before.
    """
    assert max_points >= POINTS_PER_BUCKET, max_points
    places = {name: place for place, name in enumerate(run.metric_names, start=1)}
    known = [name for name in metrics if name in places]
    curves = {name: Curve() for name in metrics}
    steps = Step.objects.filter(run=run, superseded_by=superseded_by)
    bounds = find_bounds(steps, first_step, last_step)
    if bounds is None:
        return History(curves=curves, clock=Clock(), width=1)
    first, last = bounds
    width = bucket_width(first, last, max_points)
    wanted = [places[name] for name in known]
    if width == 1:
        clock, found = _read_whole(steps.filter(step__range=bounds), wanted)
    else:
        rows = read_thinned(
            run.id,
            wanted,
            first=first,
            last=last,
            width=width,
            superseded_by=superseded_by,
        )
        clock = Clock(steps=[r[0] for r in rows], times=[r[1] for r in rows])
        found = [_pick(rows, i, place) for i, place in enumerate(wanted)]
    curves |= dict(zip(known, found, strict=True))
    return History(curves=curves, clock=clock, width=width)


def read_evaluated(
    run: Run,
    metrics: Sequence[str],
    *,
    first_step: int | None = None,
    last_step: int | None = None,
) -> dict[str, Curve]:
    """Those of the metrics that held-out evaluations measured; one query, or none."""
    curves = {name: Curve() for name in metrics if name.startswith("eval/")}
    if not curves:
        return {}
    held_out = Evaluation.objects.filter(run=run, superseded_by=None).order_by("step")
    if first_step is not None:
        held_out = held_out.filter(step__gte=first_step)
    if last_step is not None:
        held_out = held_out.filter(step__lte=last_step)
    for step, measured in held_out.values_list("step", "metrics"):
        for name in curves.keys() & measured.keys():
            if measured[name] is not None:
                curves[name].steps.append(step)
                curves[name].values.append(measured[name])
    return {name: curve for name, curve in curves.items() if curve.steps}


def _read_whole(
    steps: QuerySet[Step], places: Sequence[int]
) -> tuple[Clock, list[Curve]]:
    clock, curves = Clock(), [Curve() for _ in places]
    for step, time, values in steps.order_by("step").values_list(
        "step", "time", "values"
    ):
        clock.steps.append(step)
        clock.times.append(time.timestamp())
        for place, curve in zip(places, curves, strict=True):
            if (value := _value(values, place)) is not None:
                curve.steps.append(step)
                curve.values.append(value)
    return clock, curves


def _pick(rows: Sequence[tuple[Any, ...]], metric: int, place: int) -> Curve:
    curve = Curve()
    start = 3 + metric * COLUMNS_PER_METRIC
    for row in rows:
        low, low_step, high, high_step = row[start : start + COLUMNS_PER_METRIC]
        points = {low_step: low, high_step: high, row[0]: _value(row[2], place)}
        for step in sorted(s for s, v in points.items() if v is not None):
            curve.steps.append(step)
            curve.values.append(float(f"{points[step]:.{DIGITS}g}"))
    return curve


def _value(values: Sequence[float | None], place: int) -> float | None:
    """None when there is no number; older arrays lack metrics that came later."""
    value = values[place - 1] if place <= len(values) else None
    return value if value is not None and math.isfinite(value) else None
