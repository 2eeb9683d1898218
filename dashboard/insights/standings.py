"""The few numbers by which runs are compared, each beside the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import FloatField, Max, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from dashboard.runs.models import Evaluation, Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of a run; higher is better."""

    value: float | None
    delta: float | None  # to the baseline; None: it is the baseline, or one lacks it

    @property
    def direction(self) -> str:
        if self.delta is None or self.delta == 0:
            return "same"
        return "better" if self.delta > 0 else "worse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    title: str
    figures: list[Figure]  # one per run


def compare_standings(runs: Sequence[Run]) -> list[Column]:
    """Last and best reward, then each held-out set's. 1 query, and 1 per set."""
    columns = [
        _column("Last reward", [run.reward("last") for run in runs]),
        _column("Best reward", [run.reward("best") for run in runs]),
    ]
    latest = list(_latest_evaluations(runs))
    for name in sorted({evaluation.name for evaluation in latest}):
        columns += _held_out(runs, name, latest)
    return columns


def _latest_evaluations(runs: Sequence[Run]) -> QuerySet[Evaluation]:
    return _current(runs).order_by("run_id", "name", "-step").distinct("run_id", "name")


def _current(runs: Sequence[Run]) -> QuerySet[Evaluation]:
    return Evaluation.objects.filter(run__in=runs, superseded_by__isnull=True)


def _held_out(
    runs: Sequence[Run], name: str, latest: Sequence[Evaluation]
) -> list[Column]:
    metric = f"eval/{name}/mean"
    last = {e.run_id: e.metrics.get(metric) for e in latest if e.name == name}
    best = _best(runs, name, metric)
    return [
        _column(f"Last held-out ({name})", [last.get(run.pk) for run in runs]),
        _column(f"Best held-out ({name})", [best.get(run.pk) for run in runs]),
    ]


def _best(runs: Sequence[Run], name: str, metric: str) -> dict[int, float | None]:
    value = Cast(KeyTextTransform(metric, "metrics"), FloatField())
    rows = _current(runs).filter(name=name).order_by().values_list("run_id")
    return dict(rows.annotate(best=Max(value)))


def _column(title: str, values: list[float | None]) -> Column:
    base = values[0]
    figures = [Figure(value=base, delta=None)]
    for value in values[1:]:
        delta = None if value is None or base is None else value - base
        figures.append(Figure(value=value, delta=delta))
    return Column(title=title, figures=figures)
