"""A migration that waits for a table lets those pass who read it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Thread
from time import sleep

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations import Migration, RunSQL
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from dashboard.local.management.commands import migrate
from tests.fixtures_app import test_database_url

APP, NAME = "training", "9000_of_this_test"
TABLES = ("crowded_first", "crowded_second", "crowded_victims")
GROWS = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM crowded_victims) THEN
        RAISE EXCEPTION SQLSTATE '40P01';
    END IF;
END $$;
ALTER TABLE crowded_second ADD COLUMN later text;
ALTER TABLE crowded_first ADD COLUMN later text;
"""


class Sleeps:
    """Stands in for `time`: what happens while the command waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []
        self.on_sleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.waits.append(seconds)
        self.on_sleep()


@pytest.fixture
def sleeps(monkeypatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(migrate, "time", sleeps)
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.2)
    return sleeps


@pytest.fixture(autouse=True)
def _migration(monkeypatch, transactional_db) -> Iterator[None]:
    """One that is not applied, and alters two tables."""
    load_disk = MigrationLoader.load_disk

    def load_this_too(loader: MigrationLoader) -> None:
        load_disk(loader)
        migration = Migration(NAME, APP)
        migration.dependencies = [
            max(key for key in loader.disk_migrations if key[0] == APP)
        ]
        migration.operations = [RunSQL(GROWS)]
        loader.disk_migrations[APP, NAME] = migration

    with connection.cursor() as cursor:
        for name in TABLES:
            cursor.execute(f"CREATE TABLE {name} ()")
    monkeypatch.setattr(MigrationLoader, "load_disk", load_this_too)
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {', '.join(TABLES)}")
    MigrationRecorder(connection).record_unapplied(APP, NAME)


@contextmanager
def reading() -> Iterator[psycopg.Connection[tuple[int]]]:
    """Someone in the middle of a read of a table, for 20 seconds at most."""
    with psycopg.connect(test_database_url()) as reader:
        reader.execute("SET idle_in_transaction_session_timeout = '20s'")
        reader.execute("SELECT count(*) FROM crowded_first")
        yield reader


def migrate_now() -> str:
    output = StringIO()
    call_command("migrate", verbosity=0, stderr=output, skip_checks=True)
    return output.getvalue()


def is_migrated() -> bool:
    return (APP, NAME) in MigrationRecorder(connection).applied_migrations()


def test_it_tries_again_until_the_table_is_free(sleeps):
    with reading() as reader:
        sleeps.on_sleep = lambda: reader.rollback() if len(sleeps.waits) == 2 else None

        reported = migrate_now()

    assert is_migrated()
    assert sleeps.waits == [1.0, 2.0]
    assert "retries in 2 s" in reported


def test_it_retries_as_a_deadlocks_victim(sleeps):
    with psycopg.connect(test_database_url(), autocommit=True) as other:
        other.execute("INSERT INTO crowded_victims DEFAULT VALUES")
        sleeps.on_sleep = lambda: other.execute("DELETE FROM crowded_victims")

        migrate_now()

    assert sleeps.waits == [1.0]
    assert is_migrated()


@pytest.mark.slow
def test_it_yields_in_a_deadlock(sleeps, monkeypatch):
    """Someone writes to the first table, and then to the second, which is locked."""
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 10)
    with psycopg.connect(test_database_url()) as writer:
        # PostgreSQL checks for a deadlock after a second, first for the first waiter.
        writer.execute("LOCK TABLE crowded_first IN ROW EXCLUSIVE MODE")
        sleeps.on_sleep = writer.rollback
        thread = Thread(target=lock_in_turn, args=(writer,))
        thread.start()

        reported = migrate_now()

        thread.join()

    assert sleeps.waits == [1.0]
    assert "retries in 1 s" in reported
    assert is_migrated()


def lock_in_turn(writer: psycopg.Connection[tuple[int]]) -> None:
    """Once the migration waits for what the writer has."""
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with psycopg.connect(test_database_url(), autocommit=True) as looking:
        while looking.execute(waits).fetchone() is None:
            sleep(0.05)
    writer.execute("LOCK TABLE crowded_second IN ROW EXCLUSIVE MODE")


def test_it_gives_up_with_a_sentence(sleeps):
    with reading():
        sleeps.on_sleep = lambda: setattr(sleeps, "seconds", 10_000.0)

        with pytest.raises(CommandError):
            migrate_now()

        assert not is_migrated()


def test_the_session_waits_as_before_afterwards():
    before = lock_timeout()

    migrate_now()

    assert lock_timeout() == before


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        shown: str = cursor.fetchone()[0]
        return shown
