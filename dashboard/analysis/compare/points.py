"""Every point of one metric of several runs, in one query, as numpy arrays.

A process caches them by the number of the run's last event: whatever adds or supersedes
a step changes that number in the same transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from django.db import connection, transaction
from django.db.models import FloatField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from numpy.typing import NDArray
from psycopg import Cursor, sql

from dashboard.analysis.statistics import Array
from dashboard.runs.charts.chart import clip_all, has_clipped
from dashboard.runs.charts.series import begin_of
from dashboard.runs.models import Evaluation, Run

MOST_BYTES = 128 * 2**20
Key = tuple[int, str, str]  # run, metric, axis
TOTALS = {"tokens": "total/tokens", "samples": "total/completions"}
AXES = {
    "step": "step",
    "time": "minutes since the first step",
    "tokens": "completion tokens sampled",
    "samples": "completions sampled",
}
# In PostgreSQL NaN is greater than every number, so this filter excludes it too.
# Grouped, not by a subquery a run: so PostgreSQL may share the rows among processes.
READ = sql.SQL(
    """
    SELECT run_id, max(seq), string_agg(int4send(step), ''::bytea),
           {at}, string_agg(float8send({value}), ''::bytea)
      FROM runs_step
     WHERE run_id = ANY({runs}) AND superseded_by IS NULL AND {has_numbers}
     GROUP BY run_id
    """
)
MICROSECONDS = sql.SQL("string_agg(timestamptz_send(time), ''::bytea)")
IS_NUMBER = sql.SQL("abs({}) < 'Infinity'")
COUNTED = sql.SQL("string_agg(float8send({total}), ''::bytea)")
UNREAD = sql.SQL("NULL::bytea")  # on the axis of steps
TO_2000 = 946_684_800 * 10**6  # microseconds from 1970 to where PostgreSQL counts from
FIRST = """
    SELECT wanted.run, begun.step, begun.seconds
      FROM unnest(%s::bigint[]) AS wanted(run), LATERAL (
        SELECT step, extract(epoch FROM time)::float8 AS seconds FROM runs_step
         WHERE run_id = wanted.run AND superseded_by IS NULL ORDER BY step LIMIT 2
      ) AS begun ORDER BY 1, 2
"""


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=Sized)


@dataclass(frozen=True, slots=True)
class Version:
    """What of a run's history was read."""

    attempt: int
    seq: int


class PointsCache(Generic[Value]):
    """The newest of each run, metric and axis; the longest unused go first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._values: OrderedDict[Key, tuple[Version, Value]] = OrderedDict()
        self._lock = Lock()

    def find(self, run: Run, metric: str, axis: str) -> Value | None:
        key = (run.pk, metric, axis)
        with self._lock:
            version, value = self._values.get(key, (None, None))
            if version != Version(run.attempt, run.seq):
                return None
            self._values.move_to_end(key)
            return value

    def keep(self, run: Run, metric: str, axis: str, value: Value) -> None:
        key = (run.pk, metric, axis)
        with self._lock:
            if key in self._values:
                self._num_bytes -= self._values.pop(key)[1].nbytes
            self._values[key] = (Version(run.attempt, run.seq), value)
            self._num_bytes += value.nbytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._values.popitem(last=False)[1][1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._num_bytes = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """By rising step; all values are numbers, those beyond ±LARGEST clipped to it."""

    steps: NDArray[np.int64]
    at: Array  # where they lie on the axis
    values: Array
    is_placed: bool = True  # False: the run was not counted on this axis

    def take(self, indices: NDArray[np.int64]) -> Points:
        return Points(
            steps=self.steps[indices], at=self.at[indices], values=self.values[indices]
        )

    @property
    def is_clipped(self) -> bool:
        return has_clipped(self.values)

    @property
    def nbytes(self) -> int:
        return self.steps.nbytes + self.at.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.steps)


NONE = Points(steps=np.empty(0, np.int64), at=np.empty(0), values=np.empty(0))
UNPLACED = Points(steps=NONE.steps, at=NONE.at, values=NONE.values, is_placed=False)
cache: PointsCache[Points] = PointsCache(MOST_BYTES)


def read_points(runs: Sequence[Run], metric: str, *, axis: str) -> dict[int, Points]:
    """By run. One query; two on the time axis or for held-out scores, three for both.

    One fewer if the points of all runs are cached. Held-out scores are measured between
    steps, so they are placed between them.
    """
    if metric.startswith("eval/"):
        found = _read_evaluated(runs, metric, axis)
    else:
        found = _read_steps(runs, metric, axis)
    return _from_begin(runs, found) if axis == "time" else found


def _read_steps(runs: Sequence[Run], metric: str, axis: str) -> dict[int, Points]:
    measured = [run for run in runs if metric in run.metric_names]
    read = _query([r for r in measured if _counts(r, axis)], metric, axis=axis)
    # No one knows how many completions an imported run sampled in a step.
    guessed = [
        r
        for r in measured
        if axis == "samples" and not _counts(r, axis) and not r.is_imported
    ]
    for pk, points in _query(guessed, metric, axis="step").items():
        each = next(_samples_a_step(run) for run in guessed if run.pk == pk)
        read[pk] = _placed(points, points.steps.astype(np.float64) * each)
    uncounted = [r.pk for r in measured if r.pk not in read and not _counts(r, axis)]
    return {run.pk: NONE for run in runs} | dict.fromkeys(uncounted, UNPLACED) | read


def _counts(run: Run, axis: str) -> bool:
    return axis not in TOTALS or TOTALS[axis] in run.metric_names


def _query(runs: Sequence[Run], metric: str | None, *, axis: str) -> dict[int, Points]:
    """Without a metric: where the steps lie on the axis, and no values of use."""
    name = metric or ""
    found = {run.pk: cache.find(run, name, axis) for run in runs}
    read = {pk: points for pk, points in found.items() if points is not None}
    missing = {run.pk: run for run in runs if run.pk not in read}
    for pk, last_seq, *columns in _rows(list(missing.values()), metric, axis):
        points, run = _unpack(columns, axis), missing[pk]
        # Newer ones were stored since the run was read: its number is not theirs.
        if last_seq <= run.seq:
            cache.keep(run, name, axis, points)
        read[pk] = points
    return {run.pk: read.get(run.pk, NONE) for run in runs}


def _rows(
    runs: Sequence[Run], metric: str | None, axis: str
) -> Iterable[tuple[Any, ...]]:
    """Of each run: its number, that of its last event, and three packed columns."""
    if not runs:
        return []
    alike: dict[tuple[int | None, int | None], list[int]] = {}
    for run in runs:
        indices = _metric_index(run, metric), _metric_index(run, TOTALS.get(axis))
        alike.setdefault(indices, []).append(run.pk)
    parts = [_select(pks, *indices, axis=axis) for indices, pks in alike.items()]
    connection.ensure_connection()
    with (
        transaction.atomic(),
        connection.wrap_database_errors,
        # One of psycopg's own gives bytes where Django's gives hexadecimal text.
        Cursor(connection.connection) as cursor,
    ):
        # Compiling takes longer than the query, and the columns fit into memory.
        cursor.execute("SET LOCAL jit = off; SET LOCAL work_mem = '64MB'")
        cursor.execute(sql.SQL(" UNION ALL ").join(parts), binary=True)
        return cursor.fetchall()


def _select(
    pks: list[int], index: int | None, total: int | None, *, axis: str
) -> sql.Composed:
    """Of runs that have the metric and the total at the same indexes."""
    read = [_value(one) for one in (index, total) if one is not None]
    at = MICROSECONDS if axis == "time" else UNREAD
    return READ.format(
        runs=sql.Literal(pks),
        at=at if total is None else COUNTED.format(total=_value(total)),
        value=read[0] if read else sql.SQL("0"),
        has_numbers=sql.SQL(" AND ").join(
            [sql.SQL("true"), *map(IS_NUMBER.format, read)]
        ),
    )


def _value(index: int) -> sql.Composed:
    return sql.SQL("values[{}]").format(sql.Literal(index))


def _metric_index(run: Run, metric: str | None) -> int | None:
    names = run.metric_names
    return names.index(metric) + 1 if metric in names else None


def _unpack(columns: Sequence[bytes], axis: str) -> Points:
    packed_steps, packed_at, packed_values = columns
    steps = np.frombuffer(packed_steps, ">i4").astype(np.int64)
    if axis == "step":
        at = steps.astype(np.float64)
    elif axis == "time":
        at = (np.frombuffer(packed_at, ">i8") + TO_2000) / 1e6
    else:
        at = clip_all(np.frombuffer(packed_at, ">f8"))
    values = clip_all(np.frombuffer(packed_values, ">f8"))
    points = Points(steps=steps, at=at, values=values)
    # Rows are not ordered; sorting here is far faster than in PostgreSQL.
    if not (np.diff(steps) > 0).all():
        points = points.take(np.argsort(steps, kind="stable"))
    for column in (points.steps, points.at, points.values):
        column.setflags(write=False)  # they are kept
    return points


def _placed(points: Points, at: Array) -> Points:
    return Points(steps=points.steps, at=at, values=points.values)


def _samples_a_step(run: Run) -> int:
    rollout = run.config.get("rollout", {})
    return int(rollout["prompts_per_step"]) * int(rollout["group_size"])


def _read_evaluated(runs: Sequence[Run], metric: str, axis: str) -> dict[int, Points]:
    value = Cast(KeyTextTransform(metric, "metrics"), FloatField())
    rows = (
        Evaluation.objects.filter(run__in=runs, superseded_by__isnull=True)
        .filter(metrics__has_key=metric)
        .order_by("run_id", "step")
        .values_list("run_id", "step", value)
    )
    by_run: dict[int, list[tuple[int, float]]] = {run.pk: [] for run in runs}
    for pk, step, found in rows:
        if found is not None and np.isfinite(found):
            by_run[pk].append((step, found))
    clocks: dict[int, Points] = {}
    if axis != "step":
        clocks = _query([run for run in runs if _counts(run, axis)], None, axis=axis)
    return {run.pk: _evaluated(run, by_run[run.pk], axis, clocks) for run in runs}


def _evaluated(
    run: Run, found: list[tuple[int, float]], axis: str, clocks: dict[int, Points]
) -> Points:
    steps = np.array([step for step, _ in found], np.int64)
    values = clip_all([value for _, value in found])
    if axis == "step":
        return Points(steps=steps, at=steps.astype(np.float64), values=values)
    clock = clocks.get(run.pk, NONE)
    if len(clock):
        at = np.interp(steps, clock.steps, clock.at)
        return Points(steps=steps, at=at, values=values)
    if axis == "samples":
        at = steps.astype(np.float64) * _samples_a_step(run)
        return Points(steps=steps, at=at, values=values)
    return UNPLACED if len(steps) else NONE


def _from_begin(runs: Sequence[Run], found: dict[int, Points]) -> dict[int, Points]:
    """Minutes since a run's first step; a fork continues its parent's time."""
    clocks: dict[int, list[tuple[int, float]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(FIRST, [[run.pk for run in runs]])
        for pk, step, seconds in cursor:
            clocks.setdefault(pk, []).append((step, seconds))
    placed = {}
    for run in runs:
        points = found[run.pk]
        if run.pk in clocks:
            carried = run.fork_totals or {}
            begin = begin_of(clocks[run.pk], fork_step=run.fork_step, carried=carried)
            points = _placed(points, (points.at - begin) / 60)
        placed[run.pk] = points
    return placed
