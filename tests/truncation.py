"""Leaving the database empty after a test that committed.

Django truncates every table: a hundred, each with new files for itself and its indices,
and then makes anew what migrations leave. Few of them hold anything.
"""

from __future__ import annotations

from functools import cache

from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase

from dashboard.accounts.models import AuditEntry

# What migrating leaves in them depends on the models alone.
KEPT = {"auth_permission", "django_content_type"}


def truncate_at_teardown() -> None:
    """From now on, when a test of TransactionTestCase ends, as pytest-django has it."""
    TransactionTestCase._fixture_teardown = _empty_tables


def _empty_tables(case: TransactionTestCase) -> None:
    for tries_left in (2, 1, 0):
        try:
            _lock_and_empty(_tables())
        except OperationalError as error:  # a deadlock with who still writes, perhaps
            if not tries_left:
                raise AssertionError(f"{error}\nNot idle: {_others()}") from error
        else:
            return


def _lock_and_empty(tables: tuple[str, ...]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        # Whoever else still writes is waited for, as TRUNCATE would.
        cursor.execute("SET LOCAL lock_timeout = '30s'")
        cursor.execute("SET LOCAL statement_timeout = '60s'")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(" UNION ALL ".join(map(_name_if_filled, tables)))
        for (table,) in cursor.fetchall():
            cursor.execute(f"{_empty(table)} {table}")


def _others() -> list[tuple[object, ...]]:
    """What the other sessions of this database are at."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, backend_type, application_name, state, query"
            " FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state IS DISTINCT FROM 'idle'"
        )
        return list(cursor.fetchall())


def _empty(table: str) -> str:
    """The audit log's trigger lets no entry be deleted."""
    return "TRUNCATE" if table == AuditEntry._meta.db_table else "DELETE FROM"


def _name_if_filled(table: str) -> str:
    return f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})"  # noqa: S608 - a model's


@cache
def _tables() -> tuple[str, ...]:
    names = connection.introspection.django_table_names(
        only_existing=True, include_views=False
    )
    return tuple(sorted(set(names) - KEPT))
