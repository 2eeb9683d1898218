"""kill -9 of a trainer and of a worker during real runs."""

import os
import signal

import pytest

from dashboard.runs.control import request_stop
from dashboard.runs.models import RunState
from dashboard.runs.state import notify_workers
from dashboard.supervision.models import Worker as TrainingWorker
from tests.faults.histories import (
    assert_whole,
    end_backoff,
    is_in,
    lose_lease,
    reaches,
    started_trainer,
)
from tests.faults.workers import Worker, is_alive, wait_for

pytestmark = pytest.mark.faults
NUM_STEPS = 60  # with a checkpoint every 20


def test_a_killed_trainer_is_resumed_from_its_checkpoint(
    launch_tiny, start_worker, data_folder, undisturbed
):
    start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")
    pid = started_trainer(data_folder, run)

    os.kill(pid, signal.SIGKILL)
    wait_for(is_in(run, RunState.QUEUED), what="the run to be queued again")
    end_backoff(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.attempt == 2
    assert run.attempts.get(number=2).from_step >= 20
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def kill_all_at_once(worker: Worker, trainer: int) -> None:
    os.killpg(trainer, signal.SIGKILL)
    worker.kill_all()


def kill_while_its_trainer_hangs(worker: Worker, trainer: int) -> None:
    os.kill(trainer, signal.SIGSTOP)
    worker.kill_all()


@pytest.mark.parametrize(
    "strike",
    [
        kill_while_its_trainer_hangs,
        pytest.param(kill_all_at_once, marks=pytest.mark.soak),
    ],
)
def test_a_killed_workers_run_is_resumed_by_another(
    launch_tiny, start_worker, data_folder, undisturbed, strike
):
    worker = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")
    pid = started_trainer(data_folder, run)

    strike(worker, pid)
    wait_for(lambda: not is_alive(pid), what="the orphaned trainer to go", seconds=10)
    lose_lease(run)
    start_worker("two")
    end_backoff(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.worker.startswith("two@")
    assert run.attempts.get(number=2).from_step >= 20
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def test_a_restarted_worker_continues_its_run(launch_tiny, start_worker, undisturbed):
    worker = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")

    worker.kill()
    start_worker("one")
    # At once, although its lease is valid for most of a minute.
    wait_for(is_in(run, RunState.QUEUED), what="the run to be queued", seconds=40)
    end_backoff(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.attempt == 2
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)
    assert TrainingWorker.objects.get().name == run.worker


def terminate_worker(worker: Worker) -> None:
    worker.child.terminate()


def terminate_each_process(worker: Worker) -> None:
    """As systemd does when it stops a service."""
    os.killpg(worker.child.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    "tell",
    [terminate_worker, pytest.param(terminate_each_process, marks=pytest.mark.soak)],
)
def test_a_terminated_worker_releases_its_run_to_another(
    launch_tiny, start_worker, undisturbed, tell
):
    worker = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")

    tell(worker)
    worker.child.wait(60)
    run.refresh_from_db()
    handed_back = (run.state, run.num_losses, run.not_before)
    saved = run.checkpoints.latest("step").step
    start_worker("two")
    notify_workers()
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert handed_back == (RunState.QUEUED, 0, None)
    assert run.attempts.get(number=2).from_step == saved
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def test_a_terminated_pool_process_releases_its_run(
    launch_tiny, start_worker, undisturbed
):
    worker = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 30), what="step 30")

    os.kill(worker.pool_process(), signal.SIGTERM)
    wait_for(is_in(run, RunState.QUEUED), what="the run to be queued", seconds=30)
    handed_back = (run.state, run.num_losses, run.not_before)
    saved = run.checkpoints.latest("step").step
    notify_workers()
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert handed_back == (RunState.QUEUED, 0, None)
    assert run.attempts.get(number=2).from_step == saved
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def test_a_stop_ends_a_run_with_a_checkpoint_within_seconds(
    launch_tiny, start_worker, alice
):
    start_worker("one")
    run = launch_tiny(num_steps=10_000)
    wait_for(reaches(run, 10), what="step 10")

    assert request_stop(run=run, user=alice)
    wait_for(is_in(run, RunState.STOPPED), what="the run to stop", seconds=10)

    assert run.checkpoints.latest("step").step == run.last_step
    assert run.events.filter(type="run_stopped").count() == 1
