"""PostgreSQL is gone for a while in the middle of a real run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings

from dashboard.local.postgres import EmbeddedPostgres
from tests.faults.tiny import ROOT, read_log, series, untimed
from tests.faults.workers import Worker, wait_for

pytestmark = pytest.mark.faults
ENDLESS_STEPS = 1_000_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-outage-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A cluster of its own, as durable as in real use."""
    server = EmbeddedPostgres(
        folder=folder / "pg", socket_folder=folder / "s", log=folder / "postgres.log"
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def env(server: EmbeddedPostgres, folder: Path) -> dict[str, str]:
    env = {
        **os.environ,
        "DATABASE_URL": f"postgresql://cohort@/cohort?host={server.socket_folder}",
        "REDIS_URL": settings.REDIS_URL,
        "COHORT_DATA": str(folder / "data"),
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
    }
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return env


def ask(server: EmbeddedPostgres, sql: str, *values: object) -> list[tuple[Any, ...]]:
    address = f"postgresql://cohort@/cohort?host={server.socket_folder}"
    with psycopg.connect(address) as connection:
        return connection.execute(sql, values).fetchall()


def launch(env: dict[str, str], model: Path) -> int:
    num_steps = str(ENDLESS_STEPS)
    command = [sys.executable, "tests/faults/launch_run.py", str(model), num_steps]
    done = subprocess.run(
        command, cwd=ROOT, env=env, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_a_run_outlives_its_database(
    env: dict[str, str],
    server: EmbeddedPostgres,
    folder: Path,
    tiny_model: Path,
    outage_seconds: float,
) -> None:
    run_id = launch(env, tiny_model)
    log = folder / "data" / "runs" / str(run_id) / "epochs" / "1" / "events.jsonl"
    worker = Worker("one", env=env, log=folder / "worker.log")
    try:
        wait_for(lambda: _run(server, run_id)[1] >= 20, what="step 20")
        assert server.child is not None
        server.child.send_signal(signal.SIGQUIT)  # at once, as in a crash
        server.child.wait()
        size_before = log.stat().st_size
        time.sleep(outage_seconds)
        size_after = log.stat().st_size
        last_step = max(series(_read_whole_lines(log)))
        server.start()
        wait_for(lambda: _run(server, run_id)[1] > last_step, what="what it missed")
        _request_stop(server, run_id)
        wait_for(lambda: _run(server, run_id)[0] == "stopped", what="its end")
    finally:
        worker.terminate()

    assert size_after > size_before, "training went on without the database"
    told = read_log(log)
    assert _run(server, run_id) == ("stopped", max(series(told)), 1)
    assert _stored(server, run_id) == series(told)
    assert _stored_lines(server, run_id) == [event["line"] for event in told]
    journal = log.with_name("supervisor.log").read_text()
    assert "Storing the log fails" in journal
    assert "Storing the log works again" in journal


def _read_whole_lines(log: Path) -> list[dict[str, Any]]:
    """Of a log that is being written."""
    whole, _, _ = log.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.split(b"\n")]


def _run(server: EmbeddedPostgres, run_id: int) -> tuple[str, int, int]:
    (row,) = ask(
        server, "SELECT state, last_step, epoch FROM runs_run WHERE id = %s", run_id
    )
    assert row[0] != "failed"
    return row[0], row[1], row[2]


def _request_stop(server: EmbeddedPostgres, run_id: int) -> None:
    """As the web process does, which is not here."""
    stop = "UPDATE runs_run SET state = 'stopping' WHERE id = %s RETURNING id"
    assert ask(server, stop, run_id)


def _stored(
    server: EmbeddedPostgres, run_id: int
) -> dict[int, dict[str, float | None]]:
    ((names,),) = ask(server, "SELECT metric_names FROM runs_run WHERE id = %s", run_id)
    rows = ask(server, "SELECT step, values FROM runs_step WHERE run_id = %s", run_id)
    stored = {
        step: untimed(dict(zip(names, values, strict=False))) for step, values in rows
    }
    assert len(rows) == len(stored)
    return stored


def _stored_lines(server: EmbeddedPostgres, run_id: int) -> list[int]:
    """Of every event, groups of completions included."""
    events = "SELECT line FROM runs_runevent WHERE run_id = %s ORDER BY line"
    return [line for (line,) in ask(server, events, run_id)]
