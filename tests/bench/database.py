"""A PostgreSQL of a benchmark's own, that is gone once it has been measured."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django

from dashboard.local.postgres import EmbeddedPostgres


@contextmanager
def throwaway_database(
    leaves: list[tuple[str, str]] | None = None,
) -> Iterator[None]:
    """Django, set up with an empty database of the default durability, migrated.

    `leaves`: the last migrations that it has; without, all.
    """
    folder = Path(tempfile.mkdtemp(prefix="cohort-bench-", dir="/tmp"))
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=folder / "s", log=folder / "postgres.log"
    )
    server.start()
    try:
        os.environ["DATABASE_URL"] = f"postgresql://cohort@/cohort?host={folder / 's'}"
        os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")  # nobody listens
        os.environ["COHORT_DATA"] = str(folder / "data")
        os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
        django.setup()
        _migrate(leaves)
        yield
    finally:
        server.stop()
        shutil.rmtree(folder)


def _migrate(leaves: list[tuple[str, str]] | None) -> None:
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    if leaves is None:
        call_command("migrate", verbosity=0, skip_checks=True)
    else:
        MigrationExecutor(connection).migrate(leaves)
