"""PostgreSQL is stopped, or its disk is full, during a real run."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from dashboard.local.postgres import EmbeddedPostgres
from dashboard.local.supervisor import Supervisor
from tests.environment import run_here
from tests.faults.small_disk import fill, make_room, small_disk
from tests.faults.tiny import Groups, Series, groups, read_log, series, untimed
from tests.faults.workers import Worker, wait_for
from tests.template import copy_template

pytestmark = pytest.mark.faults
ROW = "x" * 8_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-fault-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def environment(server: EmbeddedPostgres, folder: Path) -> dict[str, str]:
    """Environment of processes that use this server."""
    return {
        **os.environ,
        "DATABASE_URL": address(server),
        "REDIS_URL": settings.REDIS_URL,
        "COHORT_DATA": str(folder / "data"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }


def address(server: EmbeddedPostgres) -> str:
    return f"postgresql://cohort@/cohort?host={server.socket_folder}"


def query(server: EmbeddedPostgres, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(address(server)) as connection:
        return connection.execute(sql, values).fetchall()


class StoredRun:
    """A run that trains until it is stopped."""

    def __init__(
        self, server: EmbeddedPostgres, env: dict[str, str], model: Path
    ) -> None:
        self._server = server
        command = [sys.executable, "tests/faults/launch_run.py", str(model), "1000000"]
        done = run_here(*command, env=env, check=True)
        self.id = int(done.stdout)
        attempt = Path(env["COHORT_DATA"]) / "runs" / str(self.id) / "epochs" / "1"
        self.log = attempt / "events.jsonl"
        self.supervisor_log = attempt / "supervisor.log"

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self._server, sql, self.id)

    def status(self) -> tuple[str, int, int]:
        """State, last step and attempt."""
        sql = "SELECT state, last_step, epoch FROM runs_run WHERE id = %s"
        ((state, last_step, attempt),) = self._query(sql)
        assert state != "failed"
        return state, last_step, attempt

    def last_step_logged(self) -> int:
        """By its trainer, stored or not."""
        whole, _, _ = self.log.read_bytes().rpartition(b"\n")
        return max(series([json.loads(line) for line in whole.split(b"\n")]))

    def request_stop(self) -> None:
        """As the web process does."""
        stop = "UPDATE runs_run SET state = 'stopping' WHERE id = %s RETURNING id"
        assert self._query(stop)

    def assert_as_logged(self) -> None:
        """In one attempt, with each step, group and line of its log once."""
        logged = read_log(self.log)
        assert self.status() == ("stopped", max(series(logged)), 1)
        assert self._series() == series(logged)
        assert self._groups() == groups(logged)
        lines = "SELECT line FROM runs_runevent WHERE run_id = %s ORDER BY seq"
        assert [line for (line,) in self._query(lines)] == [
            event["line"] for event in logged
        ]

    def _series(self) -> Series:
        ((names,),) = self._query("SELECT metric_names FROM runs_run WHERE id = %s")
        rows = self._query("SELECT step, values FROM runs_step WHERE run_id = %s")
        stored = {
            step: untimed(dict(zip(names, values, strict=False)))
            for step, values in rows
        }
        assert len(rows) == len(stored)
        return stored

    def _groups(self) -> Groups:
        rows = self._query(
            "SELECT step, prompt_index, texts, rewards, advantages"
            "  FROM samples_group g JOIN samples_groupcompletions ON group_id = g.id"
            " WHERE run_id = %s"
        )
        stored = {
            (step, prompt): list(zip(*columns, strict=True))
            for step, prompt, *columns in rows
        }
        assert len(rows) == len(stored)
        return stored


@pytest.fixture
def server(folder) -> Iterator[EmbeddedPostgres]:
    """A separate cluster with the usual durability."""
    copy_template(folder / "pg")
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=folder / "s", log=folder / "postgres.log"
    )
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    "strike",
    [
        signal.SIGQUIT,  # it stops at once
        pytest.param(signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_a_run_survives_a_database_outage(
    server, folder, tiny_model, outage_seconds, strike
):
    env = environment(server, folder)
    run = StoredRun(server, env, tiny_model)
    worker = Worker("one", env=env, log=folder / "worker.log")
    try:
        wait_for(lambda: run.status()[1] >= 20, what="step 20")
        assert server.child is not None
        server.child.send_signal(strike)
        server.child.wait()
        size_before = run.log.stat().st_size
        time.sleep(outage_seconds)
        size_after = run.log.stat().st_size
        last_step = run.last_step_logged()
        server.start()
        wait_for(lambda: run.status()[1] > last_step, what="what it missed")
        run.request_stop()
        wait_for(lambda: run.status()[0] == "stopped", what="its end")
    finally:
        worker.terminate()

    assert size_after > size_before, "training went on without the database"
    run.assert_as_logged()
    fails, works = "Storing the log failed", "succeeded after"
    assert run.supervisor_log.read_text().index(
        fails
    ) < run.supervisor_log.read_text().index(works)


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
def server_on_a_small_disk(folder) -> Iterator[EmbeddedPostgres]:
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


def test_committed_rows_survive_a_full_disk(server_on_a_small_disk):
    server = server_on_a_small_disk
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
    supervisor = Supervisor([], servers=[server], report=lambda _: None)

    def check() -> bool:
        supervisor.check()
        try:
            connect(server).close()
        except psycopg.OperationalError:
            return False
        return True

    return check


def test_training_continues_on_a_full_database_disk_and_is_stored_later(
    server_on_a_small_disk, folder, tiny_model
):
    server = server_on_a_small_disk
    env = environment(server, folder)
    run = StoredRun(server, env, tiny_model)
    worker = Worker("one", env=env, log=folder / "worker.log")
    try:
        wait_for(lambda: run.status()[1] >= 20, what="step 20")
        fill(server.folder / "pg_wal", leave=0)
        insert_until_it_fails(server)
        struck_at = run.last_step_logged()
        wait_for(lambda: run.last_step_logged() > struck_at + 10, what="more steps")
        make_room(server.folder / "pg_wal")
        wait_for(is_back(server), what="the database", seconds=60)
        last_step = run.last_step_logged()
        wait_for(lambda: run.status()[1] > last_step, what="what it missed")
        run.request_stop()
        wait_for(lambda: run.status()[0] == "stopped", what="its end")
    finally:
        worker.terminate()

    run.assert_as_logged()
