"""Samples of a run's machine: taken, reduced to a limited number of rows, drawn on the
group Machine of the tab Metrics.

Neighbouring rows merge: the mean of rates and shares, the maximum of used memory, the
minimum of free space. So a short memory peak is never lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from dashboard.project.database import fetch_all
from dashboard.runs.charts.chart import LARGEST
from dashboard.runs.models import Run, RunAttempt
from dashboard.supervision.lease import Claim
from dashboard.supervision.models import SystemSample
from dashboard.supervision.system_metrics import METRICS, Reader

logger = logging.getLogger(__name__)
MAX_ROWS = 10_000
MAX_POINTS = 500
SHORTEST_SECONDS = 5.0
PEAKS = frozenset({"trainer_memory", "memory"})
LEASTS = frozenset({"disk_free"})
Axis = Literal["time", "step"]
PERCENT = {"ticksuffix": "%", "rangemode": "tozero"}
# system.js divides bytes by the unit that fits, as Plotly knows no binary ones.
BYTES = {"ticksuffix": "B", "rangemode": "tozero"}
BYTES_PER_SECOND = {**BYTES, "ticksuffix": "B/s"}
HOVER = {"%": "%{y:.1f}", "B": "%{y:.3~g}", "B/s": "%{y:.3~g}"}
FIRST_SECONDS = 1.0
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The x axis: seconds since 1970, or steps."""

    axis: Axis = "time"
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    attempt: int
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
    rows = fetch_all(
        f"""
        SELECT epoch, extract(epoch FROM min(time))::float, max(step),
               {_merged(num_values)}
        FROM training_systemsample AS sample WHERE {where}
        GROUP BY epoch, floor(({place} - %s) / %s)
        ORDER BY epoch, 2 LIMIT {2 * MAX_POINTS}
        """,  # nosec B608 # noqa: S608 - made of numbers and of the words above
        [*parameters, begin, width],
    )
    return [
        Point(attempt=attempt, time=time, step=step, values=list(values))
        for attempt, time, step, values in rows
    ]


IDLE_PERCENT = 5.0
IDLE = """
    SELECT epoch, avg((values[place] < %s)::int)::float8
      FROM training_systemsample,
           generate_series(%s, array_length(values, 1), 2) AS place
     WHERE run_id = %s AND values[place] IS NOT NULL GROUP BY epoch
"""


def read_idle_shares(run: Run) -> dict[int, float]:
    """Read by attempt the share of time that its GPUs were used below 5%; one query."""
    return dict(fetch_all(IDLE, [IDLE_PERCENT, len(METRICS) + 1, run.pk]))


def as_columns(points: list[Point]) -> dict[str, Any]:
    """Return values by name, one a point; of as many GPUs as any point has."""
    num_gpus = (
        max((len(p.values) - len(METRICS) + 1) // 2 for p in points) if points else 0
    )
    names = list(METRICS)
    for i in range(num_gpus):
        names += [f"gpu_use/{i}", f"gpu_memory/{i}"]
    return {
        "attempt": [point.attempt for point in points],
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
        # Steps that a resume repeated come from the later attempt only.
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
    ((begin, end),) = fetch_all(
        f"SELECT min({place})::float, max({place})::float"  # nosec B608 # noqa: S608 - as above
        f" FROM training_systemsample AS sample WHERE {where}",
        parameters,
    )
    return begin or 0.0, end or 0.0


def _num_values(run_id: int) -> int:
    """Count values; the maximum over its machines, which may have different GPUs."""
    ((num,),) = fetch_all(
        "SELECT max(array_length(values, 1)) FROM training_systemsample"
        " WHERE run_id = %s",
        [run_id],
    )
    return num or 0


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


# The charts; static/js/pages/system.js fills them.


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChart:
    id: str
    title: str
    about: str
    of_gpus: bool = False
    figure: dict[str, Any]


def _figure(axis: dict[str, Any], **lines: str) -> dict[str, Any]:
    """`lines`: the metric and what it is called."""
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "line": {"width": 1.5, "color": f"var(--cohort-series-{i})"},
                "hovertemplate": HOVER[axis["ticksuffix"]],
                "meta": {"metric": metric},
            }
            for i, (metric, name) in enumerate(lines.items(), start=1)
        ],
        "layout": {"yaxis": axis, "xaxis": {}, "hovermode": "x unified"},
    }


CHARTS = (
    SystemChart(
        id="gpu-use",
        title="GPU use",
        about="Share of time with a kernel running.",
        of_gpus=True,
        figure=_figure({**PERCENT, "range": [0, 103]}, gpu_use="GPU"),
    ),
    SystemChart(
        id="gpu-memory",
        title="GPU memory",
        about="Memory used on the GPU by all processes.",
        of_gpus=True,
        figure=_figure(BYTES, gpu_memory="GPU"),
    ),
    SystemChart(
        id="cpu",
        title="CPU",
        about="100% means all cores of the machine.",
        figure=_figure(PERCENT, trainer_cpu="trainer", cpu="machine"),
    ),
    SystemChart(
        id="memory",
        title="Memory",
        about="Resident memory: the trainer with its subprocesses, and the machine.",
        figure=_figure(BYTES, trainer_memory="trainer", memory="machine"),
    ),
    SystemChart(
        id="disk",
        title="Disk traffic",
        about="All disks of the machine.",
        figure=_figure(BYTES_PER_SECOND, disk_read="read", disk_written="written"),
    ),
    SystemChart(
        id="disk-free",
        title="Free disk space",
        about="On the disk with runs and checkpoints.",
        figure=_figure(BYTES, disk_free="free"),
    ),
    SystemChart(
        id="network",
        title="Network",
        about="All interfaces except loopback.",
        figure=_figure(
            BYTES_PER_SECOND, network_received="received", network_sent="sent"
        ),
    ),
)


class SystemSampler:
    """Stores a sample every 5 s, next to the supervisor; never raises."""

    def __init__(
        self,
        claim: Claim,
        *,
        pid: int,
        read_step: Callable[[], int],
        every: float = SAMPLE_SECONDS,
    ) -> None:
        self._claim = claim
        self._pid = pid
        self._read_step = read_step
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="system", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        reader = Reader(Path(settings.COHORT_DATA), pid=self._pid)
        wait = min(FIRST_SECONDS, self._every)
        try:
            while not self._end.wait(wait):
                wait = self._every
                self._sample(reader)
        finally:
            connection.close()

    def _sample(self, reader: Reader) -> None:
        values = reader.read()
        run_id, attempt = self._claim.run_id, self._claim.attempt
        try:
            # If another worker has claimed the run, nothing more is stored.
            from_step = (
                RunAttempt.objects.filter(
                    run_id=run_id, number=attempt, run__attempt=attempt
                )
                .values_list("from_step", flat=True)
                .first()
            )
            if from_step is None:
                return
            sample = SystemSample.objects.create(
                run_id=run_id,
                attempt=attempt,
                step=max(from_step, self._read_step()),  # a resume has none at first
                time=Now(),
                values=values,
            )
            is_due = sample.pk % 100 == 0 or self._every < 1
            samples = SystemSample.objects.filter(run_id=run_id)
            if is_due and samples.count() > MAX_ROWS:
                halve(run_id)
        except DatabaseError as error:
            logger.debug("Run %d: failed to sample the system: %s", run_id, error)
            connection.close()
