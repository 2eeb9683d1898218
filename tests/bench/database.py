"""A PostgreSQL of a benchmark's own, that is gone once it has been measured."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.core.management import call_command

from dashboard.local.postgres import EmbeddedPostgres


@contextmanager
def throwaway_database() -> Iterator[None]:
    """Django, set up with an empty database of the default durability, migrated."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-bench-", dir="/tmp"))
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=folder / "s", log=folder / "postgres.log"
    )
    server.start()
    try:
        os.environ["DATABASE_URL"] = f"postgresql://cohort@/cohort?host={folder / 's'}"
        os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")  # no one listens
        os.environ["COHORT_DATA"] = str(folder / "data")
        os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
        django.setup()
        call_command("migrate", verbosity=0, skip_checks=True)
        yield
    finally:
        server.stop()
        shutil.rmtree(folder)
