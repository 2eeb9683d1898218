"""Leaving the database empty after a test that committed.

Django truncates every table: a hundred, each with new files for itself and its indices,
and then makes anew what migrations leave. Few of them hold anything.
"""

from __future__ import annotations

from functools import cache

from django.db import connection, transaction
from django.test import TransactionTestCase

from dashboard.accounts.models import AuditEntry

# What migrating leaves in them depends on the models alone.
KEPT = {"auth_permission", "django_content_type"}


def empty_at_teardown() -> None:
    """From now on, when a test of TransactionTestCase ends, as pytest-django has it."""
    TransactionTestCase._fixture_teardown = _empty_tables


def _empty_tables(case: TransactionTestCase) -> None:
    tables = _tables()
    with transaction.atomic(), connection.cursor() as cursor:
        # Whoever else still writes is waited for, as TRUNCATE would.
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(" UNION ALL ".join(map(_name_if_filled, tables)))
        for (table,) in cursor.fetchall():
            cursor.execute(f"{_empty(table)} {table}")


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
