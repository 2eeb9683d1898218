"""The disk under PostgreSQL's log is full: it ends, recovers, and lost nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from dashboard.local.postgres import EmbeddedPostgres
from dashboard.local.supervisor import Supervisor
from tests.faults.own_database import StoredRun, address, environment
from tests.faults.small_disk import fill, make_room, small_disk
from tests.faults.workers import Worker, wait_for
from tests.template import copy_template

pytestmark = pytest.mark.faults
ROW = "x" * 8_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-full-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def connect(server: EmbeddedPostgres) -> psycopg.Connection[tuple[int, str]]:
    return psycopg.connect(address(server), autocommit=True)


def insert_until_it_fails(server: EmbeddedPostgres) -> int:
    """How many rows were committed."""
    number = 0
    with connect(server) as connection:
        try:
            while True:
                sql = "INSERT INTO kept VALUES (%s, %s)"
                connection.execute(sql, [number + 1, ROW])
                number += 1
        except psycopg.OperationalError:
            return number


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """Its write-ahead log on a small disk of its own."""
    copy_template(folder / "pg")
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=folder / "s", log=folder / "postgres.log"
    )
    server.start()
    with connect(server) as connection:
        connection.execute("CREATE TABLE kept (number int, text text)")
        # As long as it is written down, so that the log fills up soon.
        connection.execute("ALTER TABLE kept ALTER text SET STORAGE EXTERNAL")
    server.stop()
    wal = server.folder / "pg_wal"
    kept = shutil.copytree(wal, folder / "kept")
    with small_disk(wal, mebibytes=96) as disk:
        shutil.copytree(kept, disk, dirs_exist_ok=True)
        _give_away(disk, like=server.folder)
        server.start()
        yield server
        server.stop()


def _give_away(folder: Path, *, like: Path) -> None:
    owner = like.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o700 if path.is_dir() else 0o600)


def test_what_was_committed_is_there_when_there_is_room_again(
    server: EmbeddedPostgres,
) -> None:
    fill(server.folder / "pg_wal", leave=0)

    num_committed = insert_until_it_fails(server)

    assert num_committed > 100
    assert "PANIC" in server.log.read_text()
    make_room(server.folder / "pg_wal")
    wait_for(is_back(server), what="the database", seconds=60)
    with connect(server) as connection:
        found = connection.execute("SELECT number, text FROM kept").fetchall()
    # What was on its way may have come as well, whole or not at all.
    assert sorted(number for number, _ in found)[:num_committed] == list(
        range(1, num_committed + 1)
    )
    assert num_committed <= len(found) <= num_committed + 1
    assert {text for _, text in found} == {ROW}


def is_back(server: EmbeddedPostgres) -> Callable[[], bool]:
    """Started again by what `manage.py up` has for it."""
    supervisor = Supervisor([], servers=[server], tell=lambda _: None)

    def look() -> bool:
        supervisor.look()
        try:
            connect(server).close()
        except psycopg.OperationalError:
            return False
        return True

    return look


def test_training_goes_on_and_what_it_told_is_stored_when_there_is_room_again(
    server: EmbeddedPostgres, folder: Path, tiny_model: Path
) -> None:
    env = environment(server, folder)
    run = StoredRun(server, env, tiny_model)
    worker = Worker("one", env=env, log=folder / "worker.log")
    try:
        wait_for(lambda: run.place()[1] >= 20, what="step 20")
        fill(server.folder / "pg_wal", leave=0)
        insert_until_it_fails(server)
        struck_at = run.last_step_told()
        wait_for(lambda: run.last_step_told() > struck_at + 10, what="more steps")
        make_room(server.folder / "pg_wal")
        wait_for(is_back(server), what="the database", seconds=60)
        last_step = run.last_step_told()
        wait_for(lambda: run.place()[1] > last_step, what="what it missed")
        run.request_stop()
        wait_for(lambda: run.place()[0] == "stopped", what="its end")
    finally:
        worker.terminate()

    run.assert_as_told()
