"""Series of a run's metrics: thinned in the database, across forks and resumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max, Min, QuerySet

from dashboard.runs.charts.downsampling import (
    COLUMNS_PER_METRIC,
    POINTS_PER_BUCKET,
    bucket_width,
    read_thinned,
)
from dashboard.runs.charts.figures import AXES
from dashboard.runs.models import Evaluation, Run, RunAttempt, Step

MAX_POINTS = 1_000
METRICS_AT_ONCE = 250  # of each 6 columns; PostgreSQL allows 1,664
# Of a curve that is thinned anyway: more than a screen shows, and half the bytes.
DIGITS = 7
SECONDS = "seconds"  # from the end of the first step of all to that of the fork's step
ENDS = ("low", "high")  # of an interval: <metric>/low beside <metric>
Interval = tuple[float, float]
MAX_TAILS = 3  # of a run that was resumed more often, the newest
MAX_SUPERSEDED_POINTS = 150


def find_bounds(
    steps: QuerySet[Any], first: int | None, last: int | None
) -> tuple[int, int] | None:
    """The first and last `step` among those from `first` to `last`; one query."""
    if first is not None:
        steps = steps.filter(step__gte=first)
    if last is not None:
        steps = steps.filter(step__lte=last)
    bounds = steps.aggregate(first=Min("step"), last=Max("step"))
    return None if bounds["first"] is None else (bounds["first"], bounds["last"])


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

    With `superseded_by` the steps that this attempt went back before.
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
        found = []
        for start in range(0, max(1, len(wanted)), METRICS_AT_ONCE):
            part = wanted[start : start + METRICS_AT_ONCE]
            rows = read_thinned(
                run.id,
                part,
                first=first,
                last=last,
                width=width,
                superseded_by=superseded_by,
            )
            clock = Clock(steps=[r[0] for r in rows], times=[r[1] for r in rows])
            found += [_pick(rows, i, place) for i, place in enumerate(part)]
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


def carried_to(run: Run, step: int) -> dict[str, float]:
    """The axes of a run and of those that it goes on from, after this step.

    Without what was not counted from the first step on. Three queries.
    """
    carried: dict[str, float] = run.fork_totals or {}
    if step == run.fork_step:
        return carried
    history = run.steps.filter(superseded_by=None, step__lte=step).order_by("step")
    at = history.filter(step=step).values_list("time", "values").first()
    if at is None:
        return {}
    time, values = at
    named = dict(zip(run.metric_names, values, strict=False))
    found = {name: v for name in AXES if (v := named.get(name)) is not None}
    if run.fork_step is None or SECONDS in carried:
        begins = history.values_list("step", "time")[:2]
        clock = [(n, moment.timestamp()) for n, moment in begins]
        begin = begin_of(clock, fork_step=run.fork_step, carried=carried)
        found[SECONDS] = round(time.timestamp() - begin, 3)
    return found


def totals_of(carried: dict[str, Any] | None) -> dict[str, float]:
    """Those that ingest goes on adding up."""
    return {name: v for name, v in (carried or {}).items() if name in AXES}


def begin_of(
    clock: list[tuple[int, float]],
    *,
    fork_step: int | None,
    carried: dict[str, float],
) -> float:
    """The moment at which a run's time axis is 0; static/js/charts/axis.js has it too.

    That of a run is the end of its first step. A fork's first step ends behind where
    its parent's curve does by as long as its steps take: that of the second is known.
    """
    (step, time), *rest = clock
    if fork_step is None or SECONDS not in carried:
        return time
    pace = (rest[0][1] - time) / (rest[0][0] - step) if rest else 0.0
    return time - pace * (step - fork_step) - carried[SECONDS]


def is_bound(metric: str) -> bool:
    """Whether it is an end of another metric's interval, and is shown with that."""
    return metric.startswith("eval/") and metric.rpartition("/")[2] in ENDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """What a resume went back before: shown in grey, never mixed with the history."""

    attempt: int  # that went back
    after: int  # the last step it kept
    clock: Clock
    curves: dict[str, Curve]


def read_tails(run: Run, metrics: Sequence[str]) -> list[Tail]:
    """The newest first; a run that never went back costs one query."""
    gone = Step.objects.filter(run=run, superseded_by__isnull=False)
    numbers = gone.order_by("-superseded_by").values_list("superseded_by", flat=True)
    attempts = [n for n in numbers.distinct()[:MAX_TAILS] if n is not None]
    kept = RunAttempt.objects.filter(run=run, number__in=attempts)
    after = dict(kept.values_list("number", "from_step")) if attempts else {}
    return [_read_tail(run, metrics, n, after.get(n, 0)) for n in attempts]


def _read_tail(run: Run, metrics: Sequence[str], attempt: int, after: int) -> Tail:
    history = read_history(
        run, metrics, max_points=MAX_SUPERSEDED_POINTS, superseded_by=attempt
    )
    curves = {name: curve for name, curve in history.curves.items() if curve.steps}
    evaluations = Evaluation.objects.filter(run=run, superseded_by=attempt)
    for step, values in evaluations.order_by("step").values_list("step", "metrics"):
        for name, value in values.items():
            if value is not None:
                curve = curves.setdefault(name, Curve())
                curve.steps.append(step)
                curve.values.append(value)
    return Tail(attempt=attempt, after=after, clock=history.clock, curves=curves)
