from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

NAME = "cohort_upgrade"


@pytest.fixture
def fresh_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """An empty database, to be migrated to wherever a test begins."""
    from django.db import connection

    with django_db_blocker.unblock():
        at = connection.settings_dict
        was = {key: at[key] for key in ("NAME", "OPTIONS")}
        _recreate(NAME)
        connection.close()
        # A pool, which a test of the web process leaves, is one of the other database.
        options = {key: at["OPTIONS"][key] for key in at["OPTIONS"] if key != "pool"}
        at.update(NAME=NAME, OPTIONS=options)
        try:
            assert _name_of_the_database() == NAME
            yield
        finally:
            connection.close()
            at.update(was)
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
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
