"""Rollups of many steps, joined into stretches of equal width by the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg import Cursor, sql

from dashboard.runs.charts.series import find_bounds
from dashboard.runs.models import Run
from dashboard.samples.models import StepRollup

MAX_STRETCHES = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The steps first … last, in stretches of `width`."""

    first: int
    last: int
    width: int

    def stretch_of(self, step: Any) -> Any:
        return (step - self.first) // self.width

    @property
    def num_stretches(self) -> int:
        return int(self.stretch_of(self.last)) + 1

    def ends(self, stretch: int) -> tuple[int, int]:
        begin = self.first + stretch * self.width
        return begin, min(begin + self.width - 1, self.last)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Some steps' packed columns, one behind the other by step."""

    place: int
    num_steps: int
    rule_names: tuple[str, ...]  # () unless asked for
    columns: tuple[bytes, ...]


def find_span(
    run: Run,
    *,
    first: int | None = None,
    last: int | None = None,
    max_stretches: int = MAX_STRETCHES,
) -> Span | None:
    """The current history's steps within these; None where there are none."""
    steps = StepRollup.objects.filter(run=run, superseded_by=None)
    bounds = find_bounds(steps, first, last)
    if bounds is None:
        return None
    start, end = bounds
    width = -(-(end - start + 1) // max_stretches)
    return Span(first=start, last=end, width=width)


QUERY = sql.SQL(
    """
    SELECT (step - %(first)s) / %(width)s AS place, count(*), {names}{columns}
      FROM samples_steprollup
     WHERE run_id = %(run)s AND superseded_by IS NULL
       AND step BETWEEN %(first)s AND %(last)s
     GROUP BY place, 3
     ORDER BY place
    """
)
JOINED = sql.SQL(", string_agg({column}, ''::bytea ORDER BY step)")


def read_stretches(
    run: Run, span: Span, columns: Sequence[str], *, by_rules: bool = False
) -> list[Stretch]:
    """One query. `by_rules`: a stretch for each set of rules that its steps had."""
    query = QUERY.format(
        names=sql.SQL("rule_names" if by_rules else "NULL::text[]"),
        columns=sql.Composed(
            [JOINED.format(column=sql.Identifier(c)) for c in columns]
        ),
    )
    given = {
        "run": run.pk,
        "first": span.first,
        "last": span.last,
        "width": span.width,
    }
    # A cursor of psycopg's own gives bytes where Django's gives hexadecimal text.
    connection.ensure_connection()
    with connection.wrap_database_errors, Cursor(connection.connection) as cursor:
        cursor.execute(query, given, binary=True)
        rows = cursor.fetchall()
    return [
        Stretch(
            place=place,
            num_steps=num_steps,
            rule_names=tuple(names or ()),
            columns=tuple(packed),
        )
        for place, num_steps, names, *packed in rows
    ]
