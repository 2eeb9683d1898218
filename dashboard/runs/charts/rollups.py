"""Lowest and highest of each 64 steps, stored while a run is ingested.

A long history is thinned from these: at most 64 rows more are read than there are
buckets, however many steps the run has made.
"""

from __future__ import annotations

from django.db import connection
from django.db.models import Max

from dashboard.runs.models import Rollup

# A power of 2: curves.py thins to stretches of 2, 4, 8 … steps, so that those of 64 and
# more are made of whole rollups.
WIDTH = 64

# The lowest of [value, step] is the first step of the lowest value, the highest of
# [value, -step] that of the highest: no sorting, in 60 % of the time. Postgres holds
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
    """Those that are whole now that the steps from first to last are stored."""
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
    """All steps before this bucket are rolled up."""
    last: int | None = Rollup.objects.filter(run_id=run_id).aggregate(
        last=Max("bucket")
    )["last"]
    return 0 if last is None else last + 1


def drop_rollups(run_id: int, *, after: int) -> None:
    """Those of steps that a resume went back before."""
    Rollup.objects.filter(run_id=run_id, bucket__gte=(after + 1) // WIDTH).delete()
