import os
import subprocess
import sys

import pytest

from dashboard.runs.models import Run, RunState
from dashboard.supervision.lease import claim_run
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import reclaim, register

NAME = "training@here"


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def held(run) -> Run:
    register(NAME, num_slots=1)
    claim_run(run.id, NAME)
    return run


def test_a_restarted_worker_requeues_its_old_runs(held, dead_pid):
    Worker.objects.update(pid=dead_pid)

    assert reclaim(NAME) == [held.id]

    held.refresh_from_db()
    assert (held.state, held.num_losses) == (RunState.QUEUED, 1)


def test_a_container_started_again_may_give_it_the_number_it_had(held):
    Worker.objects.update(pid=os.getpid())

    assert reclaim(NAME) == [held.id]


def test_a_worker_takes_no_run_from_a_living_one(held):
    Worker.objects.update(pid=os.getppid())

    assert reclaim(NAME) == []

    held.refresh_from_db()
    assert held.state == RunState.STARTING


def test_it_takes_nothing_from_a_namesake_on_another_host(held, dead_pid):
    Worker.objects.update(pid=dead_pid, host="elsewhere")

    assert reclaim(NAME) == []
