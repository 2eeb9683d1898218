"""Values of runs' metrics as numpy arrays: whole, at chosen steps, or thinned.

Superseded steps are left out here, and a metric's place in `Step.values` is looked up
here. Of each bucket of a thinned series the extremes and the last value are left. A
long history is thinned from its rollups, so at most 128 steps more are read than there
are buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
from django.db import connection
from django.db.models import Max, Min, Model, QuerySet
from numpy.typing import NDArray
from psycopg import Cursor, sql

from dashboard.runs.charts.chart import LARGEST
from dashboard.runs.charts.downsampling import WIDTH
from dashboard.runs.charts.figures import AXES
from dashboard.runs.models import Evaluation, Run, RunAttempt, Step

MAX_POINTS = 1_000
POINTS_PER_BUCKET = 3
METRICS_AT_ONCE = 1_000  # a column of each; PostgreSQL allows 1,664
# Of a curve that is thinned anyway: more than a screen shows, and half the bytes.
DIGITS = 7
SECONDS = "seconds"  # from the end of the first step of all to that of the fork's step
ENDS = ("low", "high")  # of an interval: <metric>/low beside <metric>
Interval = tuple[float, float]
Row = TypeVar("Row", bound=Model)
MAX_TAILS = 3  # of a run that was resumed more often, the newest
MAX_SUPERSEDED_POINTS = 150
TO_2000 = 946_684_800 * 10**6  # microseconds from 1970 to where PostgreSQL counts from
STEPS = """
    SELECT min(run_id), string_agg(int4send(step), ''::bytea),
           string_agg(timestamptz_send(time), ''::bytea){values}
      FROM {source}
"""
VALUE = ", string_agg(float8send(coalesce(values[{}], 'NaN')), ''::bytea)"
SPAN = (
    "runs_step WHERE run_id = {run} AND step BETWEEN {first} AND {last} AND {history}"
)
CURRENT = sql.SQL("superseded_by IS NULL")
# A lookup of each chosen step: otherwise PostgreSQL walks the whole index of the runs,
# which takes four times as long for 500 of 100,000 steps.
CHOSEN = """
    unnest({pks}::bigint[], {steps}::int[]) AS chosen (pk, at), LATERAL (
        SELECT * FROM runs_step WHERE run_id = pk AND step = at AND {history} OFFSET 0
    ) AS lookup GROUP BY run_id
"""
ROLLUPS = """
    SELECT min(run_id), string_agg(int4send(last_step), ''::bytea){values}
      FROM {source}
"""
BETWEEN = """
    unnest({pks}::bigint[], {firsts}::int[], {lasts}::int[]) AS span (pk, first, last)
    JOIN runs_rollup ON run_id = pk AND bucket > first AND bucket < last
   GROUP BY run_id
"""
EXTREMES = """, string_agg(
    int4send(coalesce(low_steps[{0}], 0)) || float8send(coalesce(lows[{0}], 'NaN')) ||
    int4send(coalesce(high_steps[{0}], 0)) || float8send(coalesce(highs[{0}], 'NaN')),
    ''::bytea)"""
MEANS = "SELECT min(run_id){values} FROM {source}"
# NaN is greater than every number in PostgreSQL.
MEAN = f""", avg(greatest(least(values[{{0}}], {LARGEST}), -{LARGEST}))
    FILTER (WHERE abs(values[{{0}}]) < 'Infinity')"""
EXTREME = np.dtype([("step", ">i4"), ("value", ">f8")])
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A number at each of some steps, which rise."""

    steps: Indices
    values: Array

    @classmethod
    def known(cls, steps: Indices, values: Array) -> Self:
        """Leave out values that are not finite."""
        there = np.isfinite(values)
        return cls(steps=steps[there], values=values[there])

    def __len__(self) -> int:
        return len(self.steps)

    def join(self, other: Series) -> Series:
        """Add points of the same metric, which may be in any order and be repeated."""
        steps = np.concatenate([self.steps, other.steps])
        steps, first = np.unique(steps, return_index=True)
        return Series(
            steps=steps, values=np.concatenate([self.values, other.values])[first]
        )


NONE = Series(steps=np.empty(0, np.int64), values=np.empty(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Times of a run's steps, in seconds since 1970, and its metrics by name."""

    times: Series
    metrics: dict[str, Series]


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """Steps from `first` to `last`, in buckets of `width`; 1: every step.

    Buckets begin at multiples of their width, a power of 2: those of one width are made
    of whole ones of half of it. So a page that thins what it holds the same way, as
    static/js/live/thinning.js does, shows what a fresh answer would.
    """

    first: int = 0
    last: int = 2**31 - 1
    width: int = 1


def make_buckets(first: int, last: int, max_points: int) -> Buckets:
    """Choose the narrowest width that gives `max_points` at most."""
    width = 1
    while (
        last - first >= max_points
        and POINTS_PER_BUCKET * (last // width - first // width + 1) > max_points
    ):
        width *= 2
    return Buckets(first=first, last=last, width=width)


def read_steps(
    runs: Sequence[Run],
    names: Sequence[str],
    *,
    at: Mapping[int, Collection[int]] | None = None,
    within: Mapping[int, Buckets] | None = None,
    superseded_by: int | None = None,
) -> dict[int, Measured]:
    """Read metrics by run; `at`: of a run's chosen steps only.

    With `superseded_by` the steps that this attempt went back before. One query.
    """
    at, within = at or {}, within or {}
    history: sql.Composable = CURRENT
    if superseded_by is not None:
        history = sql.SQL("superseded_by = {}").format(superseded_by)

    def write_source(group: Sequence[Run]) -> sql.Composed:
        if group[0].pk in at:
            chosen = [(run.pk, step) for run in group for step in at[run.pk]]
            return sql.SQL(CHOSEN).format(
                pks=_write_array(pk for pk, _ in chosen),
                steps=_write_array(step for _, step in chosen),
                history=history,
            )
        return _write_span(group[0], within.get(group[0].pk, Buckets()), history)

    nothing = dict.fromkeys(names, NONE)
    read = {run.pk: Measured(times=NONE, metrics={**nothing}) for run in runs}
    for pk, (numbers, moments), columns in _fetch(
        runs, names, STEPS, VALUE, write_source, together=at
    ):
        steps = np.frombuffer(numbers, ">i4").astype(np.int64)
        # Rows are not ordered; sorting here is far faster than in PostgreSQL.
        order = np.argsort(steps, kind="stable")
        steps = steps[order]
        seconds = (np.frombuffer(moments, ">i8")[order] + TO_2000) / 1e6
        metrics = read[pk].metrics
        for name, column in columns.items():
            metrics[name] = Series.known(
                steps, np.frombuffer(column, ">f8")[order].astype(np.float64)
            )
        read[pk] = Measured(times=Series(steps=steps, values=seconds), metrics=metrics)
    return read


def _fetch(
    runs: Sequence[Run],
    names: Sequence[str],
    statement: str,
    value: str,
    write_source: Callable[[Sequence[Run]], sql.Composed],
    *,
    together: Collection[int] = (),
) -> list[tuple[int, list[Any], dict[str, Any]]]:
    """Read columns of each run that has rows; a metric that it lacks is NaN.

    Those `together` that have the metrics at the same places are read by one SELECT,
    which is planned faster; PostgreSQL reads many rows of the others in parallel.
    """
    rows: list[tuple[int, list[Any], dict[str, Any]]] = []
    if not runs:
        return rows
    names = list(dict.fromkeys(names))
    connection.ensure_connection()
    with (
        connection.wrap_database_errors,
        # One of psycopg's own gives bytes where Django's gives hexadecimal text.
        Cursor(connection.connection) as cursor,
    ):
        for start in range(0, max(1, len(names)), METRICS_AT_ONCE):
            part = names[start : start + METRICS_AT_ONCE]
            groups = defaultdict[tuple[int, ...], list[Run]](list)
            for run in runs:
                places = {name: i for i, name in enumerate(run.metric_names, 1)}
                indices = (places.get(name, 0) for name in part)
                groups[(0 if run.pk in together else run.pk, *indices)].append(run)
            selects = [
                sql.SQL(statement).format(
                    values=sql.Composed([sql.SQL(value).format(i) for i in indices]),
                    source=write_source(group),
                )
                for (_, *indices), group in groups.items()
            ]
            cursor.execute(sql.SQL(" UNION ALL ").join(selects), binary=True)
            for pk, *packed in cursor.fetchall():
                first = len(packed) - len(part)
                metrics = dict(zip(part, packed[first:], strict=True))
                if pk is not None:  # without rows an aggregate is null
                    rows.append((pk, packed[:first], metrics))
    return rows


def _write_span(
    run: Run, span: Buckets, history: sql.Composable = CURRENT
) -> sql.Composed:
    return sql.SQL(SPAN).format(
        run=run.pk, first=span.first, last=span.last, history=history
    )


def _write_array(numbers: Iterable[int]) -> str:
    """Write an array as PostgreSQL reads it; psycopg takes several times as long."""
    return "{" + ",".join(map(str, numbers)) + "}"


def read_thinned(
    runs: Sequence[Run],
    names: Sequence[str],
    buckets: Mapping[int, Buckets],
    *,
    with_ends: bool = False,
    superseded_by: int | None = None,
) -> dict[int, Measured]:
    """Read of each bucket the lowest and the highest value and that of its last step.

    With `with_ends` also the first and the last value of those that are read, which
    are no rollups at a run's ends. Two queries at most.
    """
    is_current = superseded_by is None
    rollups = _read_rollups(
        [run for run in runs if is_current and buckets[run.pk].width >= WIDTH],
        names,
        buckets,
    )
    at: dict[int, list[int]] = {}
    for pk, (last_steps, _) in rollups.items():
        span = buckets[pk]
        newest = last_steps[_ends_of(last_steps // span.width)].tolist()
        before = range(span.first, (span.first // WIDTH + 1) * WIDTH)
        after = range((newest[-1] // WIDTH + 1) * WIDTH, span.last + 1)
        at[pk] = [*before, *newest, *after]
    read = read_steps(runs, names, at=at, within=buckets, superseded_by=superseded_by)
    for pk, measured in read.items():
        width, times = buckets[pk].width, measured.times
        if width == 1:
            continue
        ends = _ends_of(times.steps // width)
        if with_ends and len(times):
            ends = np.union1d(ends, [0])
        newest_steps = times.steps[ends]
        extremes = rollups[pk][1] if pk in rollups else {}
        read[pk] = Measured(
            times=Series(steps=newest_steps, values=times.values[ends]),
            metrics={
                name: _thin(
                    series.join(extremes.get(name, NONE)),
                    width,
                    newest_steps,
                    with_ends=with_ends,
                )
                for name, series in measured.metrics.items()
            },
        )
    return read


def read_means(
    runs: Sequence[Run], metric: str, within: Mapping[int, Buckets]
) -> dict[int, float]:
    """Average each run's values, clipped; none of a run without a value. One query."""

    rows = _fetch(
        runs, [metric], MEANS, MEAN, lambda run: _write_span(run[0], within[run[0].pk])
    )
    return {pk: mean for pk, _, means in rows if (mean := means[metric]) is not None}


def _read_rollups(
    runs: Sequence[Run], names: Sequence[str], buckets: Mapping[int, Buckets]
) -> dict[int, tuple[Indices, dict[str, Series]]]:
    """Read each rollup's last step, and extremes by metric.

    Not of the ends of a run, so that its first and last steps are read themselves.
    """

    def write_source(group: Sequence[Run]) -> sql.Composed:
        return sql.SQL(BETWEEN).format(
            pks=_write_array(run.pk for run in group),
            firsts=_write_array(buckets[run.pk].first // WIDTH for run in group),
            lasts=_write_array(buckets[run.pk].last // WIDTH for run in group),
        )

    read: dict[int, tuple[Indices, dict[str, Series]]] = {}
    for pk, (last_steps,), columns in _fetch(
        runs, names, ROLLUPS, EXTREMES, write_source, together=buckets
    ):
        metrics = read[pk][1] if pk in read else {}
        for name, column in columns.items():
            points = np.frombuffer(column, EXTREME)
            metrics[name] = NONE.join(
                Series.known(points["step"].astype(np.int64), points["value"])
            )
        read[pk] = np.sort(np.frombuffer(last_steps, ">i4")).astype(np.int64), metrics
    return read


def _ends_of(buckets: Indices) -> Indices:
    """Find the last position in each bucket; np.diff takes twice as long."""
    changes = np.flatnonzero(buckets[1:] != buckets[:-1])
    return np.concatenate([changes, [len(buckets) - 1]]) if len(buckets) else changes


def _thin(series: Series, width: int, newest: Indices, *, with_ends: bool) -> Series:
    steps, values = series.steps, series.values
    if not len(series):
        return series
    ends = _ends_of(steps // width)
    begins = np.concatenate([[0], ends[:-1] + 1])
    bucket_of = np.repeat(np.arange(len(ends)), ends - begins + 1)
    kept = np.zeros(len(steps), bool)
    places = np.minimum(steps.searchsorted(newest), len(steps) - 1)
    kept[places[steps[places] == newest]] = True
    kept[[0, -1]] |= with_ends
    for extreme in (np.minimum, np.maximum):
        extremes = extreme.reduceat(values, begins)
        matches = np.flatnonzero(values == extremes[bucket_of])[::-1]
        # Of several the first: to an index that is repeated NumPy assigns the last.
        first = np.empty_like(begins)
        first[bucket_of[matches]] = matches
        kept[first] = True
    return Series(steps=steps[kept], values=values[kept])


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values that are numbers, by rising step, as a page gets them."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, series: Series) -> Self:
        return cls(steps=series.steps.tolist(), values=series.values.tolist())


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
    """Three queries at most: where the steps lie, what is rolled up, their values."""
    assert max_points >= POINTS_PER_BUCKET, max_points
    curves = {name: Curve() for name in metrics}
    bounds = find_bounds(
        Step.objects.filter(run=run, superseded_by=superseded_by), first_step, last_step
    )
    if bounds is None:
        return History(curves=curves, clock=Clock(), width=1)
    buckets = make_buckets(*bounds, max_points)
    names = [name for name in metrics if name in set(run.metric_names)]
    measured = read_thinned(
        [run], names, {run.pk: buckets}, superseded_by=superseded_by
    )[run.pk]
    for name, series in measured.metrics.items():
        curves[name] = Curve.of(series)
        if buckets.width > 1:
            curves[name] = Curve(
                steps=curves[name].steps,
                values=[float(f"{value:.{DIGITS}g}") for value in curves[name].values],
            )
    times = Curve.of(measured.times)
    return History(
        curves=curves,
        clock=Clock(steps=times.steps, times=times.values),
        width=buckets.width,
    )


def filter_steps(
    rows: QuerySet[Row], first: int | None, last: int | None
) -> QuerySet[Row]:
    """Keep rows whose `step` is from `first` to `last`; None: no bound."""
    if first is not None:
        rows = rows.filter(step__gte=first)
    return rows if last is None else rows.filter(step__lte=last)


def find_bounds(
    steps: QuerySet[Any], first: int | None, last: int | None
) -> tuple[int, int] | None:
    """Find the first and last `step` from `first` to `last`; one query."""
    steps = filter_steps(steps, first, last)
    bounds = steps.aggregate(first=Min("step"), last=Max("step"))
    return None if bounds["first"] is None else (bounds["first"], bounds["last"])


def read_evaluated(
    runs: Sequence[Run],
    names: Sequence[str] | None = None,
    *,
    within: tuple[int | None, int | None] = (None, None),
    superseded_by: int | None = None,
) -> dict[int, dict[str, Series]]:
    """Read metrics of held-out evaluations, all of them or those of `names`, by run.

    One query, or none where no name begins with eval/.
    """
    points: dict[int, dict[str, dict[int, float]]] = {run.pk: {} for run in runs}
    held_out = Evaluation.objects.filter(run__in=runs, superseded_by=superseded_by)
    if names is not None:
        names = [name for name in names if name.startswith("eval/")]
        held_out = held_out.filter(metrics__has_any_keys=names)
    held_out = filter_steps(held_out, *within).order_by("step")
    rows = held_out.values_list("run_id", "step", "metrics")
    for pk, step, metrics in rows if names != [] else ():
        for name in metrics if names is None else names:
            if metrics.get(name) is not None:
                points[pk].setdefault(name, {})[step] = metrics[name]
    return {
        pk: {
            name: Series.known(
                np.array([*values], np.int64), np.array([*values.values()], np.float64)
            )
            for name, values in metrics.items()
        }
        for pk, metrics in points.items()
    }


def carried_to(run: Run, step: int) -> dict[str, float]:
    """Read the axes of a run and of those that it goes on from, after this step.

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
    named = run.name_values(values)
    axes = {name: v for name in AXES if (v := named.get(name)) is not None}
    if run.fork_step is None or SECONDS in carried:
        clock = [
            (n, moment.timestamp())
            for n, moment in history.values_list("step", "time")[:2]
        ]
        begin = begin_of(clock, fork_step=run.fork_step, carried=carried)
        axes[SECONDS] = round(time.timestamp() - begin, 3)
    return axes


def totals_of(carried: dict[str, Any] | None) -> dict[str, float]:
    """Take the totals that ingest goes on adding up."""
    return {name: v for name, v in (carried or {}).items() if name in AXES}


def begin_of(
    clock: list[tuple[int, float]],
    *,
    fork_step: int | None,
    carried: dict[str, float],
) -> float:
    """Find the moment where a run's time axis is 0, as static/js/charts/axis.js does.

    That of a run is the end of its first step. A fork's first step ends behind where
    its parent's curve does by as long as its steps take: that of the second is known.
    """
    (step, time), *rest = clock
    if fork_step is None or SECONDS not in carried:
        return time
    pace = (rest[0][1] - time) / (rest[0][0] - step) if rest else 0.0
    return time - pace * (step - fork_step) - carried[SECONDS]


def is_bound(metric: str) -> bool:
    """Tell whether it is an end of another metric's interval, and shown with that."""
    return metric.startswith("eval/") and metric.rpartition("/")[2] in ENDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The steps that a resume went back before: drawn in grey, not with the history."""

    attempt: int  # that went back
    after: int  # the last step it kept
    clock: Clock
    curves: dict[str, Curve]


def read_tails(run: Run, metrics: Sequence[str]) -> list[Tail]:
    """Read the newest first; a run that never went back costs one query."""
    numbers = (
        Step.objects.filter(run=run, superseded_by__isnull=False)
        .order_by("-superseded_by")
        .values_list("superseded_by", flat=True)
    )
    attempts = [n for n in numbers.distinct()[:MAX_TAILS] if n is not None]
    kept = RunAttempt.objects.filter(run=run, number__in=attempts)
    after = dict(kept.values_list("number", "from_step")) if attempts else {}
    return [_read_tail(run, metrics, n, after.get(n, 0)) for n in attempts]


def _read_tail(run: Run, metrics: Sequence[str], attempt: int, after: int) -> Tail:
    history = read_history(
        run, metrics, max_points=MAX_SUPERSEDED_POINTS, superseded_by=attempt
    )
    curves = {name: curve for name, curve in history.curves.items() if curve.steps}
    curves |= {
        name: Curve.of(series)
        for name, series in read_evaluated([run], superseded_by=attempt)[run.pk].items()
    }
    return Tail(attempt=attempt, after=after, clock=history.clock, curves=curves)
