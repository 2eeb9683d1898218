"""The database for one command: the one that runs, or Cohort's own, started for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.conf import settings
from django.db import OperationalError, connection

from dashboard.local.data_folder import private_folder
from dashboard.local.preflight import hold_folder
from dashboard.local.redis_server import embedded_postgres


@contextmanager
def database(*, held: bool) -> Iterator[None]:
    """`held`: nobody may use the data folder meanwhile. LocalFault where one does."""
    data: Path = settings.COHORT_DATA
    if not settings.DATABASE_IS_EMBEDDED or (not held and _answers()):
        yield
        return
    private_folder(data)
    with ExitStack() as stack:
        stack.enter_context(hold_folder(data, address="backup or restore"))
        postgres = embedded_postgres(data)
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(connection.close)
        yield


def _answers() -> bool:
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True
