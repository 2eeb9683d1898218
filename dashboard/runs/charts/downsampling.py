"""A metric's history in fewer numbers: rollups of steps, and one summary of all.

Rollups of 64 steps are stored while a run is ingested: series.py thins a long history
from them. The run table reads the summaries: last, lowest, highest and mean. Ingest
adds each batch to them; what a resume supersedes cannot be taken out of an extreme, so
they are then made again of the steps that are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from django.db import connection
from django.db.models import Max

from dashboard.runs.models import Rollup

# A power of 2: series.py thins to stretches of 2, 4, 8 … steps, so that those of 64 and
# more are made of whole rollups.
WIDTH = 64
# Sums stay far from where PostgreSQL refuses a number.
LARGEST_SUM = 1e290
Row = tuple[str, float, int, float, int, float, int, float, int]


# The lowest of [value, step] is the first step of the lowest value, the highest of
# [value, -step] that of the highest: no sorting, in 60% of the time. Postgres holds
# NaN to be greater than every number, so it fails the filter as well.
BUILD = f"""
    INSERT INTO runs_rollup
        (run_id, bucket, last_step, lows, low_steps, highs, high_steps)
    SELECT %(run)s, bucket, max(last_step),
           array_agg(low[1] ORDER BY place), array_agg(low[2]::int ORDER BY place),
           array_agg(high[1] ORDER BY place), array_agg(-high[2]::int ORDER BY place)
    FROM (
        SELECT step / {WIDTH} AS bucket, place, max(step) AS last_step,
               min(ARRAY[v, step]) FILTER (WHERE abs(v) < 'Infinity') AS low,
               max(ARRAY[v, -step]) FILTER (WHERE abs(v) < 'Infinity') AS high
        FROM runs_step, unnest(values) WITH ORDINALITY AS named (v, place)
        WHERE run_id = %(run)s AND superseded_by IS NULL
          AND step >= %(first)s AND step < %(end)s
        GROUP BY 1, 2
    ) AS buckets
    GROUP BY bucket
"""  # nosec B608 # noqa: S608 - only our own number is put in


def build_rollups(run_id: int, *, first_step: int, last_step: int) -> None:
    """Build rollups that are whole now that the steps from first to last are stored."""
    end = (last_step + 1) // WIDTH
    if end <= first_step // WIDTH:
        return
    first = next_bucket(run_id)
    if first >= end:
        return
    numbers = {"run": run_id, "first": first * WIDTH, "end": end * WIDTH}
    with connection.cursor() as cursor:
        cursor.execute(BUILD, numbers)


def next_bucket(run_id: int) -> int:
    """Find the bucket before which all steps are rolled up."""
    last: int | None = Rollup.objects.filter(run_id=run_id).aggregate(
        last=Max("bucket")
    )["last"]
    return 0 if last is None else last + 1


def drop_rollups(run_id: int, *, after: int) -> None:
    """Delete rollups of steps that a resume went back before."""
    Rollup.objects.filter(run_id=run_id, bucket__gte=(after + 1) // WIDTH).delete()


ADD = """
    INSERT INTO runs_metricsummary AS kept (run_id, name, last, last_step,
        low, low_step, high, high_step, total, num)
    SELECT %s, * FROM unnest(%s::text[], %s::float8[], %s::int[], %s::float8[],
        %s::int[], %s::float8[], %s::int[], %s::float8[], %s::int[])
    ON CONFLICT (run_id, name) DO UPDATE SET
        last = EXCLUDED.last, last_step = EXCLUDED.last_step,
        low_step = CASE WHEN EXCLUDED.low < kept.low
                        THEN EXCLUDED.low_step ELSE kept.low_step END,
        low = least(kept.low, EXCLUDED.low),
        high_step = CASE WHEN EXCLUDED.high > kept.high
                         THEN EXCLUDED.high_step ELSE kept.high_step END,
        high = greatest(kept.high, EXCLUDED.high),
        total = kept.total + EXCLUDED.total, num = kept.num + EXCLUDED.num
"""
# The lowest of [value, step] is the first step of the lowest value, as in BUILD.
MAKE = """
    INSERT INTO runs_metricsummary (run_id, name, last, last_step,
        low, low_step, high, high_step, total, num)
    SELECT %(run)s, name, (max(ARRAY[step, v]))[2], max(step),
           (min(ARRAY[v, step]))[1], (min(ARRAY[v, step]))[2]::int,
           (max(ARRAY[v, -step]))[1], -(max(ARRAY[v, -step]))[2]::int,
           sum(greatest(least(v, %(largest)s), -%(largest)s)), count(*)
    FROM {source} AS reported (name, step, v)
    WHERE abs(v) < 'Infinity' GROUP BY name
    ON CONFLICT (run_id, name) DO UPDATE SET
        last = EXCLUDED.last, last_step = EXCLUDED.last_step,
        low = EXCLUDED.low, low_step = EXCLUDED.low_step,
        high = EXCLUDED.high, high_step = EXCLUDED.high_step,
        total = EXCLUDED.total, num = EXCLUDED.num
"""
OF_STEPS = """(
    SELECT run.metric_names[named.place], step, v
    FROM runs_run AS run JOIN runs_step ON run_id = run.id,
         unnest(values) WITH ORDINALITY AS named (v, place)
    WHERE run.id = %(run)s AND superseded_by IS NULL)
"""
# The ends of intervals are shown with what they are of, and are no metrics themselves.
OF_EVALUATIONS = """(
    SELECT left(metric, 120), step, measured::float8
    FROM runs_evaluation, jsonb_each_text(metrics) AS reported (metric, measured)
    WHERE run_id = %(run)s AND superseded_by IS NULL AND measured IS NOT NULL
      AND metric !~ '^eval/.*/(low|high)$')
"""


def add_steps(
    run_id: int,
    names: Sequence[str],
    steps: Sequence[int],
    rows: Sequence[Sequence[float | None]],
) -> None:
    """Steps that follow those before; `rows[i]` are the values of `steps[i]`."""
    summaries = list(_summarize(names, steps, rows))
    if summaries:
        columns = [list(column) for column in zip(*summaries, strict=True)]
        with connection.cursor() as cursor:
            cursor.execute(ADD, [run_id, *columns])


def _summarize(
    names: Sequence[str], steps: Sequence[int], rows: Sequence[Sequence[float | None]]
) -> Iterator[Row]:
    # Columns: at 80,000 values a batch, what is not done in C is felt.
    for name, column in zip(names, zip_longest(*rows), strict=False):
        at: Sequence[int] = steps
        values: Sequence[Any] = column
        if None in column:
            at = [s for s, v in zip(steps, column, strict=True) if v is not None]
            values = [v for v in column if v is not None]
        if not values:
            continue
        low, high, total = min(values), max(values), sum(values)
        if not math.isfinite(total) or abs(total) > LARGEST_SUM:
            total = sum(max(-LARGEST_SUM, min(LARGEST_SUM, v)) for v in values)
            total = max(-LARGEST_SUM, min(LARGEST_SUM, total))
        low_step, high_step = at[values.index(low)], at[values.index(high)]
        last = (values[-1], at[-1])
        yield (name, *last, low, low_step, high, high_step, total, len(values))


def summarize_evaluations(run_id: int) -> None:
    """Summarize all that are stored; each was stored once."""
    _make(run_id, OF_EVALUATIONS)


def make_summaries(run_id: int) -> None:
    """Make the run's summaries again from its current history."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM runs_metricsummary WHERE run_id = %s", [run_id])
    _make(run_id, OF_STEPS)
    _make(run_id, OF_EVALUATIONS)


def _make(run_id: int, source: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            MAKE.format(source=source), {"run": run_id, "largest": LARGEST_SUM}
        )
