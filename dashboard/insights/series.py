"""One metric of one run as points on a chart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import FloatField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from dashboard.runs.charts.carried import begin_of
from dashboard.runs.charts.curves import (
    MAX_POINTS,
    Clock,
    Curve,
    History,
    read_history,
)
from dashboard.runs.models import Evaluation, Run

SAMPLES = "total/completions"
AXES = {
    "step": "step",
    "time": "minutes since the first step",
    "samples": "completions sampled",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    steps: list[int]
    x: list[float]
    values: list[float]
    smoothed: list[float]


def read_series(run: Run, metric: str, *, axis: str, smoothing: float) -> Series:
    """At most 1,000 points, thinned in the database; each bucket keeps its spikes."""
    history = read_history(run, [metric, SAMPLES])
    curve = history.curves[metric]
    if metric.startswith("eval/"):
        curve = _read_evaluations(run, metric)
    return Series(
        steps=curve.steps,
        x=_place(run, curve.steps, history, axis),
        values=curve.values,
        smoothed=smooth(curve.values, smoothing),
    )


def _read_evaluations(run: Run, metric: str) -> Curve:
    value = Cast(KeyTextTransform(metric, "metrics"), FloatField())
    rows = (
        Evaluation.objects.filter(run=run, superseded_by__isnull=True)
        .filter(metrics__has_key=metric)
        .order_by("step")
        .values_list("step", value)
    )
    points = [(step, value) for step, value in rows if value is not None]
    # An evaluation is a mean over many prompts: every n-th tells the same story.
    points = points[:: -(-len(points) // MAX_POINTS) or 1]
    return Curve(steps=[s for s, _ in points], values=[v for _, v in points])


def _place(run: Run, steps: Sequence[int], history: History, axis: str) -> list[float]:
    """A fork goes on from where its parent was, as on its own page."""
    clock = history.clock
    if axis == "time" and clock.steps:
        begin = begin_of(
            list(zip(clock.steps[:2], clock.times[:2], strict=True)),
            fork_step=run.fork_step,
            carried=run.fork_totals or {},
        )
        return [round((interpolate(clock, step) - begin) / 60, 4) for step in steps]
    if axis == "samples":
        counted = history.curves[SAMPLES]
        if counted.steps:
            total = Clock(steps=counted.steps, times=counted.values)
            return [round(interpolate(total, step)) for step in steps]
        rollout = run.config.get("rollout", {})
        each = int(rollout["prompts_per_step"]) * int(rollout["group_size"])
        return [step * each for step in steps]
    return list(steps)


def interpolate(clock: Clock, step: int) -> float:
    """When the step ended, on a line between the two known moments around it.

    Of a total: how much it was then.
    """
    if not clock.steps:
        return 0.0
    after = bisect_left(clock.steps, step)
    if after == 0 or after == len(clock.steps):
        return clock.times[min(after, len(clock.steps) - 1)]
    low, high = clock.steps[after - 1], clock.steps[after]
    share = (step - low) / (high - low)
    return clock.times[after - 1] + share * (
        clock.times[after] - clock.times[after - 1]
    )


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average, freed of its start at 0, as TensorBoard draws it.

    >>> smooth([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    smoothed, last, norm = [], 0.0, 0.0
    for value in values:
        last = weight * last + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        smoothed.append(last / norm)
    return smoothed
