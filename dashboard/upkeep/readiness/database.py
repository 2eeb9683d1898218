"""Whether PostgreSQL answers and knows all tables, by a connection of its own.

The pool's connections may all be waiting for a server that hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from functools import cache
from typing import Any

import psycopg
from django.conf import settings
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from dashboard.quiet_log import quieten
from dashboard.upkeep.readiness.parts import Part, missing
from dashboard.upkeep.readiness.waiting import in_thread

Names = Collection[tuple[str, str]]
START = (
    "Start PostgreSQL, or mend DATABASE_URL. Runs go on meanwhile, and nothing is lost."
)
MOST_NAMES = 5
READ_SECONDS = 1.0


async def check_database() -> list[Part]:
    began = time.perf_counter()
    try:
        async with await psycopg.AsyncConnection.connect(
            **connection_values(), autocommit=True
        ) as server:
            seconds = time.perf_counter() - began
            applied = await _read_applied(server)
    except psycopg.Error as error:
        return unreachable(quieten(str(error).strip().split("\n")[0]))
    found = Part(
        name="database",
        state="ok",
        value=f"answered in {1_000 * seconds:,.0f} ms",
        is_required=True,
        runbook="postgres-gone",
    )
    return [found, await _check_migrations(applied)]


async def _check_migrations(applied: Names) -> Part:
    """A process that has just begun reads the files first: a second or two."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            known = await in_thread("migrations", known_migrations)
    except TimeoutError:
        return Part(
            name="migrations",
            state="degraded",
            value="not compared yet: this process still reads its files",
            is_required=True,
            remedy="Ask again in some seconds.",
            runbook="an-upgrade-went-wrong",
        )
    return compare(known, applied)


def unreachable(why: str) -> list[Part]:
    asked = "not asked, as the database does not answer"
    return [
        missing("database", why, START, runbook="postgres-gone", is_required=True),
        missing("migrations", asked, START, runbook="postgres-gone", is_required=True),
    ]


def compare(known: Names, applied: Names) -> Part:
    lacking = sorted(set(known) - set(applied))
    ours = {app for app, _ in known}
    unknown = sorted(name for name in set(applied) - set(known) if name[0] in ours)
    if lacking:
        return missing(
            "migrations",
            f"{len(lacking):,} not applied: {_list(lacking)}",
            "Run: python manage.py migrate",
            runbook="an-upgrade-went-wrong",
            is_required=True,
        )
    if unknown:
        return Part(
            name="migrations",
            state="degraded",
            value=f"{len(unknown):,} that this version does not know: {_list(unknown)}",
            is_required=True,
            remedy="The database is newer than this process: start the new version.",
            runbook="an-upgrade-went-wrong",
        )
    return Part(
        name="migrations",
        state="ok",
        value=f"all {len(set(known)):,} applied",
        is_required=True,
        runbook="an-upgrade-went-wrong",
    )


def _list(names: list[tuple[str, str]]) -> str:
    shown = ", ".join(f"{app} {name}" for app, name in names[:MOST_NAMES])
    rest = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return shown + rest


async def _read_applied(server: psycopg.AsyncConnection[Any]) -> Names:
    try:
        rows = await server.execute("SELECT app, name FROM django_migrations")
    except psycopg.errors.UndefinedTable:
        return []
    return [(str(app), str(name)) for app, name in await rows.fetchall()]


@cache
def known_migrations() -> Names:
    """Of the files of this version."""
    return frozenset(MigrationLoader(None, ignore_no_migrations=True).disk_migrations)


def connection_values() -> dict[str, Any]:
    """As Django connects, but for the pool, within two seconds."""
    at = connection.settings_dict
    options = settings.DATABASES["default"]["OPTIONS"]
    values = {
        "dbname": at["NAME"],
        "user": at["USER"],
        "password": at["PASSWORD"],
        "host": at["HOST"],
        "port": at["PORT"],
        **{name: value for name, value in options.items() if name != "pool"},
        "connect_timeout": 2,
        "application_name": "cohort readyz",
    }
    return {name: value for name, value in values.items() if value}
