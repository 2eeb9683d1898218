"""The few numbers by which runs are compared, each beside the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.db.models import FloatField, Max, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from dashboard.insights.directions import Better
from dashboard.insights.statistics import subtract
from dashboard.runs.charts.chart import clip
from dashboard.runs.models import Evaluation, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of a run or of a set of them."""

    value: float | None
    delta: float | None  # to the baseline; None: it is the baseline, or one lacks it
    better: Better = "higher"
    is_of_one: bool = False  # it or the baseline's is of one run, so nothing is better

    @property
    def direction(self) -> str:
        if not self.delta or self.better == "neither" or self.is_of_one:
            return "same"
        is_more = self.delta > 0
        return "better" if is_more == (self.better == "higher") else "worse"


def make_figures(
    values: Sequence[float | None], nums: Sequence[int], better: Better
) -> list[Figure]:
    """Of each set, which has so many runs; the first is the baseline."""
    base = values[0]
    return [
        Figure(
            value=value,
            delta=None
            if place == 0 or value is None or base is None
            else float(subtract(np.array(value), np.array(base))),
            better=better,
            is_of_one=min(nums[0], nums[place]) < 2,
        )
        for place, value in enumerate(values)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    title: str
    figures: list[Figure]  # one per set of runs


def compare_standings(
    runs: Sequence[Run], sets: Sequence[Sequence[int]]
) -> list[Column]:
    """Last and best reward, then each held-out set's. 1 query, and 1 per held-out set.

    A figure for each set of runs, which are named by their places: the mean of theirs.
    """
    columns = [
        ("Last reward", [run.reward("last") for run in runs]),
        ("Best reward", [run.reward("best") for run in runs]),
    ]
    latest = list(_latest_evaluations(runs))
    for name in sorted({evaluation.name for evaluation in latest}):
        columns += _held_out(runs, name, latest)
    nums = [len(one) for one in sets]
    return [
        Column(
            title=title,
            figures=make_figures([_mean(values, s) for s in sets], nums, "higher"),
        )
        for title, values in columns
    ]


def _mean(values: Sequence[float | None], places: Sequence[int]) -> float | None:
    found = [clip(v) for place in places if (v := values[place]) is not None]
    return sum(found) / len(found) if found else None


def _latest_evaluations(runs: Sequence[Run]) -> QuerySet[Evaluation]:
    return _current(runs).order_by("run_id", "name", "-step").distinct("run_id", "name")


def _current(runs: Sequence[Run]) -> QuerySet[Evaluation]:
    return Evaluation.objects.filter(run__in=runs, superseded_by__isnull=True)


def _held_out(
    runs: Sequence[Run], name: str, latest: Sequence[Evaluation]
) -> list[tuple[str, list[float | None]]]:
    metric = f"eval/{name}/mean"
    last = {e.run_id: e.metrics.get(metric) for e in latest if e.name == name}
    best = _best(runs, name, metric)
    return [
        (f"Last mean of {name}", [last.get(run.pk) for run in runs]),
        (f"Best mean of {name}", [best.get(run.pk) for run in runs]),
    ]


def _best(runs: Sequence[Run], name: str, metric: str) -> dict[int, float | None]:
    value = Cast(KeyTextTransform(metric, "metrics"), FloatField())
    rows = _current(runs).filter(name=name).order_by().values_list("run_id")
    return dict(rows.annotate(best=Max(value)))
