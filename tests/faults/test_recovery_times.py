"""Recovery without help: leases expire, and beat reaps and wakes workers."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from dashboard.runs.models import RunState
from tests.faults.histories import assert_whole, is_in, reaches, started_trainer
from tests.faults.workers import Worker, beat, is_alive, wait_for

pytestmark = pytest.mark.faults
NUM_STEPS = 60  # with a checkpoint every 20
PROMISED_SECONDS = 90


@pytest.fixture(name="beat", autouse=True)
def _beat(app_environment, tmp_path) -> Iterator[Worker]:
    worker = beat(env=app_environment, folder=tmp_path)
    yield worker
    worker.terminate()


def test_the_run_of_a_killed_trainer_continues(
    launch_tiny, start_worker, data_folder, undisturbed
):
    start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")

    os.kill(started_trainer(data_folder, run), signal.SIGKILL)
    resumed = run.events.filter(type="run_resumed", attempt=2)
    wait_for(resumed.exists, what="its next life", seconds=PROMISED_SECONDS)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.attempts.get(number=2).from_step >= 20
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def test_the_run_of_a_killed_worker_continues_on_another(
    launch_tiny, start_worker, data_folder, undisturbed
):
    worker = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")
    trainer = started_trainer(data_folder, run)
    start_worker("two")

    begin = time.monotonic()
    worker.kill()  # without a signal to its trainer
    wait_for(lambda: not is_alive(trainer), what="its trainer to go", seconds=10)
    left = PROMISED_SECONDS - (time.monotonic() - begin)
    next_life = run.attempts.filter(number=2)
    wait_for(next_life.exists, what="its next life", seconds=left)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.worker.startswith("two@")
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)
