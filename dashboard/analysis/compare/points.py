"""Metrics of several runs as numpy arrays: every point, or those that a chart draws.

Of a long run a chart draws evenly spaced steps, and the extremes that its rollups keep:
so what is read does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from django.db import connection, transaction
from django.db.models import FloatField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from numpy.typing import NDArray
from psycopg import Cursor, sql

from dashboard.analysis.statistics import Array
from dashboard.runs.charts.chart import LARGEST, clip_all, has_clipped
from dashboard.runs.charts.downsampling import WIDTH
from dashboard.runs.charts.series import begin_of
from dashboard.runs.models import Evaluation, Run
from dashboard.runs.queries import Keyed

MAX_WHOLE = 2_000  # steps of a run that is read whole; a chart draws up to 1,000 points
LEAST_FOUND = 0.5  # of a metric's sampled steps; one that is measured rarely is whole
TOTALS = {"tokens": "total/tokens", "samples": "total/completions"}
AXES = {
    "step": "step",
    "time": "minutes since the first step",
    "tokens": "completion tokens sampled",
    "samples": "completions sampled",
}
# Grouped, not by a subquery a run: so PostgreSQL may share the rows among processes.
READ = sql.SQL(
    """
    SELECT run_id, string_agg(int4send(step), ''::bytea), {at}{values}
      FROM runs_step
     WHERE run_id = ANY({runs}) AND superseded_by IS NULL{numbers}
     GROUP BY run_id
    """
)
# A lookup of each step: for step = ANY(…) PostgreSQL walks the whole index of the runs,
# which takes four times as long for 500 of 100,000 steps.
READ_STEPS = sql.SQL(
    """
    SELECT found.* FROM unnest({runs}::bigint[]) AS wanted(run), LATERAL (
        SELECT run_id, string_agg(int4send(step), ''::bytea), {at}{values}
          FROM unnest({steps}::int[]) AS grid(at)
          JOIN runs_step
            ON run_id = wanted.run AND step = grid.at AND superseded_by IS NULL
         GROUP BY run_id
      ) AS found
    """
)
# Of a whole curve only numbers: NaN is greater than every number in PostgreSQL.
IS_NUMBER = sql.SQL(" AND abs({}) < 'Infinity'")
VALUE = sql.SQL(", string_agg(float8send(coalesce({}, 'NaN')), ''::bytea)")
MICROSECONDS = sql.SQL("string_agg(timestamptz_send(time), ''::bytea)")
COUNTED = sql.SQL("string_agg(float8send(coalesce({}, 'NaN')), ''::bytea)")
UNREAD = sql.SQL("NULL::bytea")  # on the axis of steps
ROLLED = sql.SQL(
    "SELECT run_id{values} FROM runs_rollup WHERE run_id = ANY({runs}) GROUP BY run_id"
)
EXTREMES = sql.SQL(
    "".join(
        f", string_agg(int4send(coalesce({end}_steps[{{0}}], 0)), ''::bytea)"
        f", string_agg(float8send(coalesce({end}s[{{0}}], 'NaN')), ''::bytea)"
        for end in ("low", "high")
    )
)
MEANS = sql.SQL(
    """
    SELECT run_id, avg(greatest(least({value}, {largest}), -{largest}))
      FROM runs_step
     WHERE run_id = ANY({runs}) AND superseded_by IS NULL
       AND step BETWEEN {first} AND {last}{is_number}
     GROUP BY run_id
    """
)
TO_2000 = 946_684_800 * 10**6  # microseconds from 1970 to where PostgreSQL counts from
FIRST = """
    SELECT wanted.run, begun.step, begun.seconds
      FROM unnest(%s::bigint[]) AS wanted(run), LATERAL (
        SELECT step, extract(epoch FROM time)::float8 AS seconds FROM runs_step
         WHERE run_id = wanted.run AND superseded_by IS NULL ORDER BY step LIMIT 2
      ) AS begun ORDER BY 1, 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """By rising step; all values are numbers, those beyond ±LARGEST clipped to it."""

    steps: NDArray[np.int64]
    at: Array  # where they lie on the axis
    values: Array
    is_placed: bool = True  # False: the run was not counted on this axis
    is_whole: bool = True  # False: some points of a long run

    def take(self, indices: NDArray[np.int64]) -> Points:
        return replace(
            self,
            steps=self.steps[indices],
            at=self.at[indices],
            values=self.values[indices],
        )

    @property
    def is_clipped(self) -> bool:
        return has_clipped(self.values)

    def __len__(self) -> int:
        return len(self.steps)


NONE = Points(steps=np.empty(0, np.int64), at=np.empty(0), values=np.empty(0))
UNPLACED = replace(NONE, is_placed=False)
ByRun = dict[int, Points]


def read_points(runs: Sequence[Run], metric: str, *, axis: str) -> ByRun:
    """Every point, by run. One query; two on the time axis or for held-out scores,
    three for both. Held-out scores are measured between steps, so they are placed
    between them.
    """
    clocks: ByRun = {}
    if metric.startswith("eval/"):
        if axis != "step":
            clocks = _clocks(
                _read([run for run in runs if _counts(run, axis)], [], axis)
            )
        found = _read_evaluated(runs, metric, axis, clocks)
    else:
        measured = [run for run in runs if metric in run.metric_names]
        read = _read(measured, [metric], axis, only_numbers=True)
        found = {run.pk: _place(run, metric, axis, read) for run in runs}
    return _from_begin(runs, [found])[0] if axis == "time" else found


def read_drawn(
    runs: Sequence[Run],
    metrics: Sequence[str],
    *,
    axis: str,
    most: int,
    is_aligned: bool = False,
) -> dict[str, ByRun]:
    """What a chart draws of each metric: of a long run about `most` points.

    Aligned: at steps that are the same for all runs, for means over them. Otherwise
    with each run's extremes. Two queries; one more on the time axis, one for each
    held-out score, and one for each metric that a long run measured rarely.
    """
    grids = _grids(runs, most, is_aligned=is_aligned)
    stepwise = [metric for metric in metrics if not metric.startswith("eval/")]
    read = _read(runs, stepwise, axis, grids=grids)
    clocks = _clocks(read) if axis != "step" else {}
    long = [run for run in runs if run.pk in grids]
    peaks = {} if is_aligned else _read_extremes(long, stepwise)
    found: dict[str, ByRun] = {}
    for metric in metrics:
        if metric not in stepwise:
            found[metric] = _read_evaluated(runs, metric, axis, clocks)
            continue
        found[metric] = {
            run.pk: _with_peaks(
                _place(run, metric, axis, read, is_whole=run.pk not in grids),
                peaks.get((run.pk, metric)),
                clocks.get(run.pk),
            )
            for run in runs
        }
        rare = [run for run in long if _is_rare(run, metric, read, grids[run.pk])]
        if rare:
            whole = _read(rare, [metric], axis, only_numbers=True)
            found[metric] |= {run.pk: _place(run, metric, axis, whole) for run in rare}
    if axis == "time":
        return dict(zip(metrics, _from_begin(runs, list(found.values())), strict=True))
    return found


def read_means(
    runs: Sequence[Run], metric: str, points: ByRun, first: int, last: int
) -> dict[int, float]:
    """Each run's mean over these steps; none without a value. At most one query."""
    means: dict[int, float] = {}
    long = [run for run in runs if not points[run.pk].is_whole]
    for run in runs:
        at, end = np.searchsorted(points[run.pk].steps, [first, last + 1])
        if end > at and points[run.pk].is_whole:
            means[run.pk] = float(points[run.pk].values[at:end].mean())
    if not long:
        return means
    # What ended runs measured does not change until one is extended.
    read = read_means_once if all(run.has_ended for run in long) else _read_means
    moments = tuple((run.pk, run.attempt, run.seq) for run in long)
    return means | read(Keyed((metric, *moments), _alike(long, [metric])), first, last)


def _read_means(
    runs: Keyed[dict[tuple[int | None, ...], list[int]]], first: int, last: int
) -> dict[int, float]:
    """All rows of the window, as the rollups hold no sums."""
    parts = [
        MEANS.format(
            value=_value(index),
            largest=sql.Literal(LARGEST),
            runs=sql.Literal(pks),
            first=sql.Literal(first),
            last=sql.Literal(last),
            is_number=IS_NUMBER.format(_value(index)),
        )
        for (index,), pks in runs.value.items()
        if index is not None
    ]
    return dict(_fetch(parts))


read_means_once = lru_cache(maxsize=32)(_read_means)


def read_at(
    runs: Sequence[Run], metric: str, steps: Sequence[int]
) -> dict[int, dict[int, float]]:
    """Each run's values at these steps. One query."""
    grids = dict.fromkeys((run.pk for run in runs), tuple(steps))
    read = _read(runs, [metric], "step", grids=grids)
    return {
        pk: {
            int(step): float(value)
            for step, value in zip(rows.steps, rows.values[metric], strict=True)
            if np.isfinite(value)
        }
        for pk, rows in read.items()
    }


# Reading.


@dataclass(frozen=True, slots=True)
class _Rows:
    """A run's steps, where they lie on the axis, and values: NaN is no number."""

    steps: NDArray[np.int64]
    at: Array
    values: dict[str, Array]


def _grids(
    runs: Sequence[Run], most: int, *, is_aligned: bool
) -> dict[int, tuple[int, ...]]:
    """The steps to read of each run that is too long to be read whole."""
    spans = {run.pk: ((run.fork_step or 0) + 1, run.last_step) for run in runs}
    long = {pk: span for pk, span in spans.items() if span[1] - span[0] >= MAX_WHOLE}
    if is_aligned and long:
        first, last = (
            min(f for f, _ in spans.values()),
            max(e for _, e in spans.values()),
        )
        ends = {end for span in spans.values() for end in span}
        # Half as many: those of each run lie beside those of every other.
        return dict.fromkeys(spans, _spread(first, last, most // 2, ends))
    # Rollups end before the last steps, which are read whole.
    return {
        pk: _spread(first, last, most // 3, set(range(last // WIDTH * WIDTH, last + 1)))
        for pk, (first, last) in long.items()
    }


def _spread(first: int, last: int, num: int, also: set[int]) -> tuple[int, ...]:
    even = np.linspace(first, last, num).round().astype(int).tolist()
    return tuple(sorted({*even, *also}))


def _read(
    runs: Sequence[Run],
    metrics: Sequence[str],
    axis: str,
    *,
    grids: dict[int, tuple[int, ...]] | None = None,
    only_numbers: bool = False,
) -> dict[int, _Rows]:
    total = TOTALS.get(axis)
    names = [*metrics, *([total] if total else [])]
    parts = []
    by_grid: dict[tuple[int, ...], list[Run]] = {}
    for run in runs:
        by_grid.setdefault((grids or {}).get(run.pk, ()), []).append(run)
    for grid, own in by_grid.items():
        for indices, pks in _alike(own, names).items():
            parts.append(_select(pks, indices, axis, grid, only_numbers=only_numbers))
    return {pk: _unpack(columns, metrics, axis) for pk, *columns in _fetch(parts)}


def _alike(
    runs: Sequence[Run], names: Sequence[str]
) -> dict[tuple[int | None, ...], list[int]]:
    """Runs that have the metrics at the same indexes; None: it has no such metric."""
    found: dict[tuple[int | None, ...], list[int]] = {}
    for run in runs:
        places = {name: place for place, name in enumerate(run.metric_names, start=1)}
        indices = tuple(places.get(name) for name in names)
        found.setdefault(indices, []).append(run.pk)
    return found


def _select(
    pks: list[int],
    indices: Sequence[int | None],
    axis: str,
    grid: Sequence[int],
    *,
    only_numbers: bool,
) -> sql.Composed:
    metrics = indices
    at: sql.Composable = MICROSECONDS if axis == "time" else UNREAD
    if axis in TOTALS:
        *metrics, total = indices
        at = UNREAD if total is None else COUNTED.format(_value(total))
    known = [_value(index) for index in indices if index is not None]
    return (READ_STEPS if grid else READ).format(
        runs=sql.Literal(pks),
        at=at,
        values=sql.Composed(
            [VALUE.format(_value(i) if i else sql.SQL("NULL::float8")) for i in metrics]
        ),
        steps=sql.Literal(list(grid)),
        numbers=sql.Composed(
            [IS_NUMBER.format(value) for value in known] if only_numbers else []
        ),
    )


def _value(index: int) -> sql.Composed:
    return sql.SQL("values[{}]").format(sql.Literal(index))


def _fetch(parts: Sequence[sql.Composable]) -> Iterable[tuple[Any, ...]]:
    if not parts:
        return []
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


def _unpack(columns: Sequence[Any], metrics: Sequence[str], axis: str) -> _Rows:
    packed_steps, packed_at, *packed = columns
    steps = np.frombuffer(packed_steps, ">i4").astype(np.int64)
    if axis == "time":
        at = (np.frombuffer(packed_at, ">i8") + TO_2000) / 1e6
    elif packed_at is None:
        at = steps.astype(np.float64)
    else:
        at = clip_all(np.frombuffer(packed_at, ">f8"))
    values = [clip_all(np.frombuffer(each, ">f8")) for each in packed]
    # Rows are not ordered; sorting here is far faster than in PostgreSQL.
    if not (np.diff(steps) > 0).all():
        order = np.argsort(steps, kind="stable")
        steps, at, values = steps[order], at[order], [each[order] for each in values]
    return _Rows(steps, at, dict(zip(metrics, values, strict=True)))


def _read_extremes(
    runs: Sequence[Run], metrics: Sequence[str]
) -> dict[tuple[int, str], tuple[NDArray[np.int64], Array]]:
    """Steps and values of each run's and metric's lowest and highest in 64 steps."""
    parts = [
        ROLLED.format(
            values=sql.Composed(
                [EXTREMES.format(sql.Literal(i or 0)) for i in indices]
            ),
            runs=sql.Literal(pks),
        )
        for indices, pks in _alike(runs, metrics).items()
    ]
    found = {}
    for pk, *columns in _fetch(parts if metrics else []):
        for place, metric in enumerate(metrics):
            low_steps, lows, high_steps, highs = columns[4 * place : 4 * place + 4]
            steps = [np.frombuffer(each, ">i4") for each in (low_steps, high_steps)]
            values = [np.frombuffer(each, ">f8") for each in (lows, highs)]
            joined = clip_all(np.concatenate(values))
            there = np.isfinite(joined)
            at = np.concatenate(steps).astype(np.int64)
            found[pk, metric] = (at[there], joined[there])
    return found


# Placing points on the axis.


def _counts(run: Run, axis: str) -> bool:
    return axis not in TOTALS or TOTALS[axis] in run.metric_names


def _clocks(read: dict[int, _Rows]) -> ByRun:
    """Where the steps lie on the axis; the values are of no use."""
    found = {}
    for pk, rows in read.items():
        there = np.isfinite(rows.at)
        at = rows.at[there]
        found[pk] = Points(steps=rows.steps[there], at=at, values=at)
    return found


def _place(
    run: Run,
    metric: str,
    axis: str,
    read: dict[int, _Rows],
    *,
    is_whole: bool = True,
) -> Points:
    rows = read.get(run.pk)
    if metric not in run.metric_names or rows is None:
        return NONE
    values, at = rows.values[metric], rows.at
    if not _counts(run, axis):
        # No one knows how many completions an imported run sampled in a step.
        if axis != "samples" or run.is_imported:
            return UNPLACED
        at = rows.steps.astype(np.float64) * _samples_a_step(run)
    there = np.flatnonzero(np.isfinite(values) & np.isfinite(at))
    points = Points(steps=rows.steps, at=at, values=values, is_whole=is_whole)
    return points if len(there) == len(points) else points.take(there)


def _is_rare(
    run: Run, metric: str, read: dict[int, _Rows], grid: Sequence[int]
) -> bool:
    """Whether most of the sampled steps have no value, as of every hundredth step."""
    if metric not in run.metric_names:
        return False
    wanted = sum((run.fork_step or 0) < step <= run.last_step for step in grid)
    rows = read.get(run.pk)
    num = 0 if rows is None else int(np.isfinite(rows.values[metric]).sum())
    return num < LEAST_FOUND * wanted


def _with_peaks(
    points: Points,
    peaks: tuple[NDArray[np.int64], Array] | None,
    clock: Points | None,
) -> Points:
    if peaks is None or not len(points):
        return points
    steps, values = peaks
    at = steps.astype(np.float64)
    if clock is not None:
        at = np.interp(at, clock.steps, clock.at)
    joined = np.concatenate([points.steps, steps])
    unique, first = np.unique(joined, return_index=True)
    return replace(
        points,
        steps=unique,
        at=np.concatenate([points.at, at])[first],
        values=np.concatenate([points.values, values])[first],
    )


def _samples_a_step(run: Run) -> int:
    rollout = run.config.get("rollout", {})
    return int(rollout["prompts_per_step"]) * int(rollout["group_size"])


def _read_evaluated(
    runs: Sequence[Run], metric: str, axis: str, clocks: ByRun
) -> ByRun:
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
    return {run.pk: _evaluated(run, by_run[run.pk], axis, clocks) for run in runs}


def _evaluated(
    run: Run, found: list[tuple[int, float]], axis: str, clocks: ByRun
) -> Points:
    steps = np.array([step for step, _ in found], np.int64)
    values = clip_all([value for _, value in found])
    if axis == "step":
        return Points(steps=steps, at=steps.astype(np.float64), values=values)
    clock = clocks.get(run.pk, NONE) if _counts(run, axis) else NONE
    if len(clock):
        at = np.interp(steps, clock.steps, clock.at)
        return Points(steps=steps, at=at, values=values)
    if axis == "samples" and not run.is_imported:
        at = steps.astype(np.float64) * _samples_a_step(run)
        return Points(steps=steps, at=at, values=values)
    return UNPLACED if len(steps) else NONE


def _from_begin(runs: Sequence[Run], curves: Sequence[ByRun]) -> list[ByRun]:
    """Minutes since a run's first step; a fork continues its parent's time."""
    clocks: dict[int, list[tuple[int, float]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(FIRST, [[run.pk for run in runs]])
        for pk, step, seconds in cursor:
            clocks.setdefault(pk, []).append((step, seconds))
    begins = {
        run.pk: begin_of(
            clocks[run.pk], fork_step=run.fork_step, carried=run.fork_totals or {}
        )
        for run in runs
        if run.pk in clocks
    }
    return [
        {
            pk: replace(points, at=(points.at - begins[pk]) / 60)
            if pk in begins
            else points
            for pk, points in found.items()
        }
        for found in curves
    ]
