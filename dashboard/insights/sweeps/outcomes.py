"""One number a run: what of a metric a sweep is judged by. All stored values count."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import connection

from dashboard.runs.charts.chart import LARGEST, clip
from dashboard.runs.models import Evaluation, Run

LAST, TAIL, HIGHEST, LOWEST = "last", "tail", "highest", "lowest"
KINDS = [
    (LAST, "last value"),
    (TAIL, "mean of the last tenth of its steps"),
    (HIGHEST, "highest value"),
    (LOWEST, "lowest value"),
]
TAIL_SHARE = 10  # the last 1 of 10
# NaN and infinities are no measurement; NaN would be PostgreSQL's largest number.
STEPS = """
SELECT p.id, avg(v.value), max(v.value), min(v.value)
FROM (
    SELECT id, array_position(metric_names, %(metric)s) AS place,
        CASE WHEN %(is_tail)s THEN last_step - ceil(last_step / %(tail)s::float8)
        ELSE 0 END AS begin
    FROM runs_run WHERE id = ANY(%(runs)s)
) p
JOIN runs_step s
    ON s.run_id = p.id AND s.superseded_by IS NULL AND s.step > p.begin
CROSS JOIN LATERAL (
    SELECT greatest(least(s.values[p.place], %(largest)s), -%(largest)s) AS value
) v
WHERE abs(s.values[p.place]) < 'Infinity'
GROUP BY p.id
"""


def read_outcomes(
    runs: Sequence[Run], metric: str, kind: str
) -> dict[int, float | None]:
    """By run, clipped; None where it has no value (yet). At most one query."""
    if metric.startswith("eval/"):
        found = _of_evaluations(runs, metric, kind)
    elif kind == LAST:
        found = {
            run.pk: _finite(run.summary.get("last", {}).get(metric)) for run in runs
        }
    else:
        found = _of_steps(runs, metric, kind)
    return {run.pk: found.get(run.pk) for run in runs}


def _finite(value: float | None) -> float | None:
    return clip(value) if value is not None and math.isfinite(value) else None


def _of_steps(runs: Sequence[Run], metric: str, kind: str) -> dict[int, float | None]:
    place = 1 + [TAIL, HIGHEST, LOWEST].index(kind)
    given: dict[str, str | bool | float | list[int]] = {
        "largest": LARGEST,
        "metric": metric,
        "runs": [run.pk for run in runs],
        "tail": TAIL_SHARE,
        "is_tail": kind == TAIL,
    }
    with connection.cursor() as cursor:
        cursor.execute(STEPS, given)
        return {row[0]: row[place] for row in cursor.fetchall()}


def _of_evaluations(
    runs: Sequence[Run], metric: str, kind: str
) -> dict[int, float | None]:
    """An evaluation counts for the tail when its step lies there."""
    rows = (
        Evaluation.objects.filter(run__in=runs, superseded_by=None)
        .filter(metrics__has_key=metric)
        .order_by("step")
        .values_list("run_id", "step", "metrics")
    )
    points: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for run_id, step, metrics in rows:
        value = metrics[metric]
        if value is not None and math.isfinite(value):
            points[run_id].append((step, clip(value)))
    return {
        run.pk: _take(points[run.pk], kind, begin=run.last_step)
        for run in runs
        if points[run.pk]
    }


def _take(
    points: Sequence[tuple[int, float]], kind: str, *, begin: int
) -> float | None:
    values = [value for _, value in points]
    if kind == TAIL:
        after = begin - math.ceil(begin / TAIL_SHARE)
        return _mean(value for step, value in points if step > after)
    return {LAST: values[-1], HIGHEST: max(values), LOWEST: min(values)}[kind]


def _mean(values: Iterable[float]) -> float | None:
    given = list(values)
    return sum(given) / len(given) if given else None
