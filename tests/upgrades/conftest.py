from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

NAME = "cohort_upgrade"
VACUUM_SECONDS = 30


@pytest.fixture
def fresh_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """An empty database, to be migrated to wherever a test begins."""
    from django.db import connection

    with django_db_blocker.unblock():
        at, ours = connection.settings_dict, connection.settings_dict["NAME"]
        _recreate(NAME)
        connection.close()
        at["NAME"] = NAME
        try:
            assert _name_of_the_database() == NAME
            yield
        finally:
            connection.close()
            at["NAME"] = ours
            _drop(NAME)
            connection.close()


def _name_of_the_database() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        return str(cursor.fetchone()[0])


def _recreate(name: str) -> None:
    from django.db import connection

    _drop(name)
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')


def _drop(name: str) -> None:
    from django.db import ProgrammingError, connection

    until = time.monotonic() + VACUUM_SECONDS
    with connection.cursor() as cursor:
        while True:
            try:
                return cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            except ProgrammingError:  # who may not end autovacuum waits for its end
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
