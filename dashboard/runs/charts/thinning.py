"""The query that thins a history: of each bucket of steps its extremes and its last.

Buckets begin at multiples of their width, a power of 2: those of one width are made of
whole ones of half of it. So a page that thins what it holds the same way, as
static/js/live/thinning.js does, shows what a fresh answer would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection, transaction
from psycopg import sql

from dashboard.runs.charts import rollups

POINTS_PER_BUCKET = 3
COLUMNS_PER_METRIC = 4
CURRENT = sql.SQL("superseded_by IS NULL")

# One pass finds each bucket's extremes, a second the steps they are at: exact, and for
# 100,000 steps of 12 metrics several times as fast as ordered aggregates.
THINNED = sql.SQL(
    """
    WITH points AS MATERIALIZED (
        SELECT step / %(width)s AS bucket, step AS last_step{columns}
        FROM runs_step
        WHERE run_id = %(run)s AND {history}
          AND (step BETWEEN %(first)s AND %(before)s
               OR step BETWEEN %(behind)s AND %(last)s)
        UNION ALL
        SELECT bucket / %(ratio)s, last_step{rolled}
        FROM runs_rollup
        WHERE run_id = %(run)s AND bucket >= %(low)s AND bucket < %(high)s
    ), extremes AS MATERIALIZED (
        SELECT bucket, max(last_step) AS newest_step{extremes}
        FROM points GROUP BY bucket
    ), places AS (
        SELECT bucket{places} FROM points JOIN extremes USING (bucket) GROUP BY bucket
    )
    SELECT newest.step, extract(epoch FROM newest.time)::float8, newest.values{picks}
    FROM extremes JOIN places USING (bucket)
    JOIN runs_step newest ON newest.run_id = %(run)s
         AND newest.{history} AND newest.step = newest_step
    ORDER BY bucket
    """
)
# Postgres holds NaN to be greater than every number, so it fails this as well.
FINITE = "CASE WHEN abs(values[{place}]) < 'Infinity' THEN values[{place}] END"
COLUMNS = sql.SQL(
    f", {FINITE} AS {{low}}, step AS {{low_step}}"
    f", {FINITE} AS {{high}}, step AS {{high_step}}"
)
ROLLED = sql.SQL(
    ", lows[{place}], low_steps[{place}], highs[{place}], high_steps[{place}]"
)
EXTREMES = sql.SQL(", min({low}) AS {least}, max({high}) AS {most}")
PLACES = sql.SQL(
    ", min({low_step}) FILTER (WHERE {low} = {least}) AS {least_step}"
    ", min({high_step}) FILTER (WHERE {high} = {most}) AS {most_step}"
)
PICKS = sql.SQL(", {least}, {least_step}, {most}, {most_step}")


def bucket_width(first: int, last: int, max_points: int) -> int:
    """The narrowest power of 2 whose buckets give `max_points` at most."""
    width = 1
    while last - first >= max_points and _num_points(first, last, width) > max_points:
        width *= 2
    return width


def _num_points(first: int, last: int, width: int) -> int:
    return POINTS_PER_BUCKET * (last // width - first // width + 1)


def read_thinned(
    run_id: int,
    places: Sequence[int],
    *,
    first: int,
    last: int,
    width: int,
    superseded_by: int | None = None,
) -> list[tuple[Any, ...]]:
    """A row a bucket: last step, its time and values; then of each metric the lowest,
    its step, the highest, its step.
    """
    is_current = superseded_by is None
    low, high = _rolled(run_id, first, last, width) if is_current else (0, 0)
    # Without rollups the first stretch is everything and the second is empty.
    numbers = {
        "run": run_id,
        "width": width,
        "ratio": max(1, width // rollups.WIDTH),
        "first": first,
        "before": low * rollups.WIDTH - 1 if low < high else last,
        "behind": high * rollups.WIDTH if low < high else last + 1,
        "last": last,
        "low": low,
        "high": high,
    }
    history = (
        CURRENT
        if is_current
        else sql.SQL("superseded_by = {}").format(sql.Literal(superseded_by))
    )
    with transaction.atomic(), connection.cursor() as cursor:
        # Compiling takes longer than the query, and the points fit into memory.
        cursor.execute("SET LOCAL jit = off; SET LOCAL work_mem = '64MB'")
        cursor.execute(_compose(places, history), numbers)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _rolled(run_id: int, first: int, last: int, width: int) -> tuple[int, int]:
    """The rollups that lie within first … last, the second one exclusive."""
    if width < rollups.WIDTH:
        return 0, 0
    low = -(-first // rollups.WIDTH)
    return low, min(rollups.next_bucket(run_id), (last + 1) // rollups.WIDTH)


def _compose(places: Sequence[int], history: sql.Composable) -> sql.Composed:
    names = [_names(i, place) for i, place in enumerate(places)]
    parts = {
        "columns": COLUMNS,
        "rolled": ROLLED,
        "extremes": EXTREMES,
        "places": PLACES,
        "picks": PICKS,
    }
    return THINNED.format(
        history=history,
        **{
            name: sql.Composed([part.format(**n) for n in names])
            for name, part in parts.items()
        },
    )


def _names(metric: int, place: int) -> dict[str, sql.Composable]:
    found = ("low", "low_step", "high", "high_step")
    kept = ("least", "least_step", "most", "most_step")
    named = {c: sql.Identifier(f"{c}{metric}") for c in (*found, *kept)}
    return {"place": sql.Literal(place), **named}
