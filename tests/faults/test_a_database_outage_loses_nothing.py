"""PostgreSQL is gone for a while in the middle of a real run."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.local.postgres import EmbeddedPostgres
from tests.faults.own_database import StoredRun, environment
from tests.faults.workers import Worker, wait_for
from tests.template import copy_template

pytestmark = pytest.mark.faults


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-outage-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A cluster of its own, as durable as in real use."""
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
def test_a_run_outlives_its_database(
    server: EmbeddedPostgres,
    folder: Path,
    tiny_model: Path,
    outage_seconds: float,
    strike: signal.Signals,
) -> None:
    env = environment(server, folder)
    run = StoredRun(server, env, tiny_model)
    worker = Worker("one", env=env, log=folder / "worker.log")
    try:
        wait_for(lambda: run.place()[1] >= 20, what="step 20")
        assert server.child is not None
        server.child.send_signal(strike)
        server.child.wait()
        size_before = run.log.stat().st_size
        time.sleep(outage_seconds)
        size_after = run.log.stat().st_size
        last_step = run.last_step_told()
        server.start()
        wait_for(lambda: run.place()[1] > last_step, what="what it missed")
        run.request_stop()
        wait_for(lambda: run.place()[0] == "stopped", what="its end")
    finally:
        worker.terminate()

    assert size_after > size_before, "training went on without the database"
    run.assert_as_told()
    fails, works = "Storing the log fails", "works again"
    assert run.journal.read_text().index(fails) < run.journal.read_text().index(works)
