"""Empty the database quickly after a test that committed.

Django truncates all hundred tables, which creates new files for each table and index,
and then restores the rows of migrations. Only few tables have rows.
"""

from functools import cache

from django.db import OperationalError, connection, transaction
from django.test import TransactionTestCase

from dashboard.accounts.models import AuditEntry

# Their rows come from migrations and depend only on the models.
MIGRATED = {"auth_permission", "django_content_type"}


def truncate_at_teardown() -> None:
    """Replace the teardown of TransactionTestCase, which pytest-django uses."""
    TransactionTestCase._fixture_teardown = _empty_tables


def _empty_tables(case: TransactionTestCase) -> None:
    for tries_left in (2, 1, 0):
        try:
            _lock_and_empty(_tables())
        except (
            OperationalError
        ) as error:  # such as a deadlock with a process that still writes
            if not tries_left:
                raise AssertionError(
                    f"{error}\nNot idle: {_active_sessions()}"
                ) from error
        else:
            return


def _lock_and_empty(tables: tuple[str, ...]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        # Waits for other writers, as TRUNCATE does.
        cursor.execute("SET LOCAL lock_timeout = '30s'")
        cursor.execute("SET LOCAL statement_timeout = '60s'")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(" UNION ALL ".join(map(_name_if_filled, tables)))
        for (table,) in cursor.fetchall():
            cursor.execute(f"{_empty(table)} {table}")


def _active_sessions() -> list[tuple[object, ...]]:
    """Active sessions of other processes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, backend_type, application_name, state, query"
            " FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state IS DISTINCT FROM 'idle'"
        )
        return list(cursor.fetchall())


def _empty(table: str) -> str:
    """The audit log's trigger refuses DELETE."""
    return "TRUNCATE" if table == AuditEntry._meta.db_table else "DELETE FROM"


def _name_if_filled(table: str) -> str:
    return f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})"  # noqa: S608 - a model's


@cache
def _tables() -> tuple[str, ...]:
    names = connection.introspection.django_table_names(
        only_existing=True, include_views=False
    )
    return tuple(sorted(set(names) - MIGRATED))
