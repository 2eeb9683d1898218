"""The SQL of a test's queries, of prepared statements too, whose logs have none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def noting_sql() -> Iterator[list[str]]:
    queries: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        queries.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield queries
