"""Rows into PostgreSQL by COPY, the fastest way in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import psycopg
from django.db import connection

from dashboard.project.database import clean_text

EVENT_COLUMNS = ("run_id", "seq", "epoch", "line", "type", "step", "time", "body")
STEP_COLUMNS = ("run_id", "step", "epoch", "seq", "time", "values")
GROUP_COLUMNS = (
    "id",
    "run_id",
    "step",
    "prompt_index",
    "epoch",
    "seq",
    "prompt",
    "answer",
    "reward_mean",
    "reward_std",
    "signal",
    "rule_names",
    "is_trained",
    "num_notes",
)
COMPLETION_COLUMNS = (
    "group_id",
    "texts",
    "num_bytes",
    "num_tokens",
    "end_reasons",
    "rewards",
    "advantages",
    "mean_logprobs",
    "rule_scores",
)
ROLLUP_COLUMNS = (
    "run_id",
    "step",
    "epoch",
    "groups",
    "reward_quantiles",
    "reward_histogram",
    "advantage_quantiles",
    "advantage_histogram",
    "rule_names",
    "rules",
    "anatomy",
    "passes",
    "majorities",
)
TOKEN_COLUMNS = ("group_id", "packed")
NOTE_COLUMNS = ("run_id", "group_id", "step", "position", "rule", "is_error", "text")


def copy_rows(
    table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Rows that are known to be new; values as COPY's text format takes them."""
    names = ", ".join(f'"{column}"' for column in columns)
    # Django passes `copy` on to psycopg's cursor, but leaves its errors as they are.
    with connection.wrap_database_errors, connection.cursor() as wrapper:
        cursor = cast("psycopg.Cursor[Any]", wrapper)
        with cursor.copy(f'COPY "{table}" ({names}) FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)


def number_array(values: Iterable[float | None]) -> str:
    """A float8[] or int[] as text: {0.5,NULL,1e-06}."""
    return "{" + ",".join("NULL" if v is None else repr(v) for v in values) + "}"


def text_array(values: Iterable[str]) -> str:
    """A text[] as text, every element quoted."""
    return "{" + ",".join(_quote(clean_text(value)) for value in values) + "}"


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def take_ids(table: str, count: int) -> list[int]:
    """Fresh primary keys, so that children can be copied with their parents."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, 'id')) "
            "FROM generate_series(1, %s)",
            [table, count],
        )
        return [row[0] for row in cursor.fetchall()]
