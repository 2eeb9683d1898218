"""Samples of a run's machine: kept to a number, and read in as many points as asked.

Neighbours become one: the mean of what is a rate or a share, the peak of what is held,
the least of what is left. So a short peak of memory is never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from django.db import connection, transaction

from dashboard.runs.charts.chart import LARGEST
from dashboard.training.system.reader import METRICS

MAX_ROWS = 10_000
MAX_POINTS = 500
SHORTEST_SECONDS = 5.0
PEAKS = frozenset({"trainer_memory", "memory"})
LEASTS = frozenset({"disk_free"})
Axis = Literal["time", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is looked at: seconds since 1970, or steps."""

    axis: Axis = "time"
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    epoch: int
    time: float
    step: int
    values: list[float | None]


@transaction.atomic
def halve(run_id: int) -> None:
    """Merge neighbours until half of the allowed rows are left."""
    num_values = _num_values(run_id)
    begin, end = _span(run_id, Window())
    seconds = max(2 * SHORTEST_SECONDS, (end - begin) / (MAX_ROWS / 2))
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH old AS (
              DELETE FROM training_systemsample WHERE run_id = %s RETURNING *
            )
            INSERT INTO training_systemsample (run_id, epoch, time, step, values)
            SELECT %s, epoch, min(time), max(step), {_merged(num_values)}
            FROM old GROUP BY epoch, floor(extract(epoch FROM time) / %s)
            """,  # nosec B608 # noqa: S608 - made of numbers alone
            [run_id, run_id, seconds],
        )


def read_points(
    run_id: int, window: Window, *, after: float | None = None
) -> list[Point]:
    """About 500 of them, oldest first; with `after`, what came since, as it is."""
    num_values = _num_values(run_id)
    if not num_values:
        return []
    begin, end = _span(run_id, window)
    width = max(1e-3, (end - begin) / MAX_POINTS)
    where, parameters = _where(run_id, window)
    if after is not None:
        where += " AND extract(epoch FROM time) > %s"
        parameters.append(after)
        width = 1e-3
    place = _place(window.axis)
    width = max(1.0, width) if window.axis == "step" else width
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT epoch, extract(epoch FROM min(time))::float, max(step),
                   {_merged(num_values)}
            FROM training_systemsample AS sample WHERE {where}
            GROUP BY epoch, floor(({place} - %s) / %s)
            ORDER BY epoch, 2 LIMIT {2 * MAX_POINTS}
            """,  # nosec B608 # noqa: S608 - made of numbers and of the words above
            [*parameters, begin, width],
        )
        rows = cursor.fetchall()
    return [
        Point(epoch=epoch, time=time, step=step, values=list(values))
        for epoch, time, step, values in rows
    ]


def as_columns(points: list[Point]) -> dict[str, Any]:
    """By name, as many values as points; of GPUs as many as any of them had."""
    num_gpus = (
        max((len(p.values) - len(METRICS) + 1) // 2 for p in points) if points else 0
    )
    names = list(METRICS)
    for i in range(num_gpus):
        names += [f"gpu_use/{i}", f"gpu_memory/{i}"]
    return {
        "epoch": [point.epoch for point in points],
        "time": [round(point.time, 3) for point in points],
        "step": [point.step for point in points],
        "values": {
            name: [_short(point.values, i) for point in points]
            for i, name in enumerate(names)
        },
    }


def _short(values: list[float | None], index: int) -> float | None:
    value = values[index] if index < len(values) else None
    return None if value is None else float(f"{value:.4g}")


def _place(axis: Axis) -> str:
    return "step" if axis == "step" else "extract(epoch FROM time)"


def _where(run_id: int, window: Window) -> tuple[str, list[Any]]:
    place = _place(window.axis)
    where, parameters = "sample.run_id = %s", [run_id]
    if window.axis == "step":
        # Steps that a resume went back before are told by the later life alone.
        where += """ AND NOT EXISTS (
          SELECT 1 FROM runs_epoch AS later WHERE later.run_id = sample.run_id
          AND later.number > sample.epoch AND later.from_step < sample.step)"""
    for bound, sign in ((window.first, ">="), (window.last, "<=")):
        if bound is not None:
            where += f" AND {place} {sign} %s"
            parameters.append(bound)  # type: ignore[arg-type]  # int or float
    return where, parameters


def _span(run_id: int, window: Window) -> tuple[float, float]:
    where, parameters = _where(run_id, window)
    place = _place(window.axis)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT min({place})::float, max({place})::float"  # nosec B608 # noqa: S608 - as above
            f" FROM training_systemsample AS sample WHERE {where}",
            parameters,
        )
        begin, end = cursor.fetchone()
    return begin or 0.0, end or 0.0


def _num_values(run_id: int) -> int:
    """The most that any of its machines told; they may have different GPUs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(array_length(values, 1)) FROM training_systemsample"
            " WHERE run_id = %s",
            [run_id],
        )
        return cursor.fetchone()[0] or 0


def _merged(num_values: int) -> str:
    # A sum of numbers near the largest float would be none.
    parts = [
        f"{_how(i)}(greatest(least(values[{i + 1}], {LARGEST}), -{LARGEST}))"
        f" FILTER (WHERE abs(values[{i + 1}]) < 'Infinity')"
        for i in range(num_values)
    ]
    return f"ARRAY[{', '.join(parts)}]::float[]"


def _how(index: int) -> str:
    if index >= len(METRICS):
        return "max" if (index - len(METRICS)) % 2 else "avg"  # memory, use
    name = METRICS[index]
    return "max" if name in PEAKS else "min" if name in LEASTS else "avg"
