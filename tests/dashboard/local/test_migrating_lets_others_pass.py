"""A migration that waits for a table lets those pass who read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Thread
from time import sleep

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dashboard.local.management.commands import migrate
from tests.fixtures_app import test_database_url

pytestmark = pytest.mark.django_db(transaction=True)
APP, BEFORE = "training", "0001_initial"  # 0002 alters training_worker


class Sleeps:
    """Stands in for `time`: what happens while the command waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []
        self.on_sleep = lambda: None

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.waits.append(seconds)
        self.on_sleep()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr(migrate, "time", sleeps)
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.2)
    return sleeps


@pytest.fixture
def older() -> Iterator[None]:
    """The app's tables as they were a migration before."""
    MigrationExecutor(connection).migrate([(APP, BEFORE)])
    yield
    call_command("migrate", verbosity=0)


@pytest.fixture
def with_completions() -> Iterator[None]:
    """As before samples' 0018, which deletes their table."""
    MigrationExecutor(connection).migrate([("samples", "0017_unpack_backwards")])
    yield
    call_command("migrate", verbosity=0)


@contextmanager
def reading(
    table: str = "training_worker",
) -> Iterator[psycopg.Connection[tuple[int]]]:
    """Somebody in the middle of a read of the table, for 20 seconds at most."""
    with psycopg.connect(test_database_url()) as reader:
        reader.execute("SET idle_in_transaction_session_timeout = '20s'")
        reader.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - names of ours
        yield reader


def migrate_now() -> str:
    told = StringIO()
    call_command("migrate", verbosity=0, stderr=told)
    return told.getvalue()


def is_migrated() -> bool:
    done = MigrationExecutor(connection).loader.applied_migrations
    return (APP, "0002_drained_workers_and_system_samples") in done


def test_it_tries_again_until_the_table_is_free(older: None, sleeps: Sleeps) -> None:
    with reading() as reader:
        sleeps.on_sleep = lambda: reader.rollback() if len(sleeps.waits) == 2 else None

        told = migrate_now()

    assert is_migrated()
    assert sleeps.waits == [1.0, 2.0]
    assert "tries again in 2 s" in told


def test_a_table_that_is_deleted_is_waited_for_as_briefly(
    with_completions: None, sleeps: Sleeps
) -> None:
    with reading("samples_completion") as reader:
        sleeps.on_sleep = reader.rollback

        told = migrate_now()

    assert sleeps.waits == [1.0]
    assert "A table is in use" in told
    assert "samples_completion" not in connection.introspection.table_names()


def test_it_gives_way_where_each_waits_for_the_other(
    with_completions: None, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody stores a group, and its completions once their table is locked."""
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 10)
    with psycopg.connect(test_database_url()) as writer:
        # Who waits first asks first, after a second, whether that is a deadlock.
        writer.execute("LOCK TABLE samples_group IN ROW EXCLUSIVE MODE")
        sleeps.on_sleep = writer.rollback
        thread = Thread(target=lock_in_turn, args=(writer,))
        thread.start()

        told = migrate_now()

        thread.join()

    assert sleeps.waits == [1.0]
    assert "tries again in 1 s" in told
    assert "samples_completion" not in connection.introspection.table_names()


def lock_in_turn(writer: psycopg.Connection[tuple[int]]) -> None:
    """Once the migration waits for what the writer has."""
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with psycopg.connect(test_database_url(), autocommit=True) as looking:
        while looking.execute(waits).fetchone() is None:
            sleep(0.05)
    writer.execute("LOCK TABLE samples_completion IN ROW EXCLUSIVE MODE")


def test_it_gives_up_with_a_sentence(older: None, sleeps: Sleeps) -> None:
    with reading():
        sleeps.on_sleep = lambda: setattr(sleeps, "seconds", 10_000.0)

        with pytest.raises(CommandError, match="run the same again"):
            migrate_now()

        assert not is_migrated()


def test_the_session_waits_as_before_afterwards(older: None) -> None:
    before = lock_timeout()

    migrate_now()

    assert lock_timeout() == before


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        shown: str = cursor.fetchone()[0]
        return shown
