"""kill -9 of a trainer and of a worker, in the middle of real runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from dashboard.accounts.models import User
from dashboard.runs.control import request_stop
from dashboard.runs.doorbell import ring_workers
from dashboard.runs.models import Run, RunState
from dashboard.training.models import Worker as TrainingWorker
from dashboard.training.reaper import reap
from tests.faults.tiny import NUM_STEPS, untimed
from tests.faults.workers import Worker, is_alive, trainer_pid, wait_for

pytestmark = pytest.mark.faults
Series = dict[int, dict[str, float | None]]


def stored_series(run: Run) -> Series:
    run.refresh_from_db()
    rows = run.steps.filter(superseded_by=None).order_by("step")
    return {
        row.step: untimed(dict(zip(run.metric_names, row.values, strict=False)))
        for row in rows
    }


def assert_whole(run: Run, expected: Series) -> None:
    stored = stored_series(run)
    steps = list(
        run.steps.filter(superseded_by=None)
        .order_by("step")
        .values_list("step", flat=True)
    )
    assert steps == list(range(1, NUM_STEPS + 1))  # no gap, no duplicate
    assert stored == expected


def reaches(run: Run, step: int) -> Callable[[], bool]:
    def look() -> bool:
        run.refresh_from_db()
        assert run.state != RunState.FAILED, run.fail_reason
        return run.last_step >= step

    return look


def is_in(run: Run, state: RunState) -> Callable[[], bool]:
    def look() -> bool:
        run.refresh_from_db()
        assert run.state == state or run.state != RunState.FAILED, run.fail_reason
        return run.state == state

    return look


def end_rest(run: Run) -> None:
    """What the dispatcher does 10 s later."""
    Run.objects.filter(id=run.id).update(not_before=None)
    ring_workers()


def test_a_killed_trainer_is_resumed_from_its_checkpoint(
    launch_tiny: Callable[..., Run],
    start_worker: Callable[[str], Worker],
    data_folder: Path,
    undisturbed: Series,
) -> None:
    start_worker("one")
    run = launch_tiny()
    wait_for(reaches(run, 50), what="step 50")
    pid = trainer_pid(data_folder, run.id, epoch=1)
    assert pid

    os.kill(pid, signal.SIGKILL)
    wait_for(is_in(run, RunState.QUEUED), what="the run to be queued again")
    end_rest(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.epoch == 2
    assert run.epochs.get(number=2).from_step >= 40
    assert_whole(run, undisturbed)


def test_a_killed_workers_run_is_resumed_by_another(
    launch_tiny: Callable[..., Run],
    start_worker: Callable[[str], Worker],
    data_folder: Path,
    undisturbed: Series,
) -> None:
    worker = start_worker("one")
    run = launch_tiny()
    wait_for(reaches(run, 50), what="step 50")
    pid = trainer_pid(data_folder, run.id, epoch=1)
    assert pid

    worker.kill()
    wait_for(lambda: not is_alive(pid), what="the orphaned trainer to go", seconds=10)
    Run.objects.filter(id=run.id).update(lease_until=Now() - timedelta(seconds=1))
    assert reap(grace=timedelta(0)) == [run.id]  # as beat has it done a minute later
    start_worker("two")
    end_rest(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.worker.startswith("two@")
    assert_whole(run, undisturbed)


def test_a_worker_started_again_goes_on_with_the_run_it_left(
    launch_tiny: Callable[..., Run],
    start_worker: Callable[[str], Worker],
    undisturbed: Series,
) -> None:
    worker = start_worker("one")
    run = launch_tiny()
    wait_for(reaches(run, 50), what="step 50")

    worker.kill()
    start_worker("one")
    # At once, though its lease has most of a minute to run.
    wait_for(is_in(run, RunState.QUEUED), what="the run to be queued", seconds=40)
    end_rest(run)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert run.epoch == 2
    assert_whole(run, undisturbed)
    assert TrainingWorker.objects.get().name == run.worker


def test_a_worker_told_to_shut_down_hands_its_run_to_another(
    launch_tiny: Callable[..., Run],
    start_worker: Callable[[str], Worker],
    undisturbed: Series,
) -> None:
    worker = start_worker("one")
    run = launch_tiny()
    wait_for(reaches(run, 50), what="step 50")

    worker.terminate(patience_seconds=20)
    run.refresh_from_db()
    handed_back = (run.state, run.attempt, run.not_before)
    saved = run.checkpoints.latest("step").step
    start_worker("two")
    ring_workers()
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert handed_back == (RunState.QUEUED, 0, None)
    assert run.epochs.get(number=2).from_step == saved
    assert_whole(run, undisturbed)


def test_a_stop_ends_a_run_with_a_checkpoint_within_seconds(
    launch_tiny: Callable[..., Run],
    start_worker: Callable[[str], Worker],
    alice: User,
) -> None:
    start_worker("one")
    run = launch_tiny(num_steps=10_000)
    wait_for(reaches(run, 10), what="step 10")

    assert request_stop(run=run, user=alice)
    wait_for(is_in(run, RunState.STOPPED), what="the run to stop", seconds=10)

    assert run.checkpoints.latest("step").step == run.last_step
    assert run.events.filter(type="run_stopped").count() == 1
