"""Messages delivered many times, and a zombie: a run has one trainer and one writer."""

import os
import signal
from collections.abc import Callable

import pytest
import redis
from django.conf import settings
from django.db import connection

from dashboard.celery import app
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import notify_workers
from dashboard.supervision.tasks import send_work
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
NUM_STEPS = 60
QUEUE = "training"


@pytest.fixture
def broker() -> redis.Redis:
    return redis.Redis(unix_socket_path=settings.REDIS_URL.removeprefix("unix://"))


def test_a_message_delivered_ten_times_starts_one_trainer(
    launch_tiny, start_worker, broker, undisturbed
):
    run = launch_tiny(num_steps=NUM_STEPS)
    broker.delete(QUEUE)  # its launch's ring, and what an earlier test has left
    notify_workers()
    [message] = broker.lrange(QUEUE, 0, -1)
    for _ in range(9):
        broker.lpush(QUEUE, message)

    workers = [start_worker(name) for name in ("one", "two", "three")]
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")
    wait_for(lambda: num_received(workers) == 10, what="all messages to arrive")

    assert run.attempts.count() == run.attempt == 1
    supervisor_log = run_directory(run.id).attempt(1).supervisor_log.read_text()
    assert supervisor_log.count("Started the trainer") == 1
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)


def num_received(workers: list[Worker]) -> int:
    message = "] succeeded in "
    return sum(worker.log.read_text().count(message) for worker in workers)


def stop_between_transactions(groups: list[int]) -> bool:
    """In one, the zombie would keep the run's row locked for a minute, no longer."""
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle'"
            " AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        if cursor.fetchone() == (0,):
            return True
    for group in groups:
        os.killpg(group, signal.SIGCONT)
    return False


def is_taken_up(run: Run) -> Callable[[], bool]:
    def look() -> bool:
        # As beat does: the zombie still listens and may take the first notification.
        send_work(app)
        return run.events.filter(attempt=2).exists()

    return look


@pytest.mark.parametrize(
    "stops_trainer",
    [
        pytest.param(True, id="both"),
        pytest.param(False, id="worker", marks=pytest.mark.soak),
    ],
)
def test_a_zombie_writes_nothing_and_ends_its_trainer(
    launch_tiny, start_worker, data_folder, undisturbed, stops_trainer
):
    zombie = start_worker("one")
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 25), what="step 25")
    trainer = started_trainer(data_folder, run)
    groups = [zombie.child.pid, *([trainer] if stops_trainer else [])]

    wait_for(lambda: stop_between_transactions(groups), what="a quiet moment")
    lose_lease(run)
    start_worker("two")
    end_backoff(run)
    wait_for(is_taken_up(run), what="the other worker's first word")
    known = run.events.filter(attempt=1).count()
    for group in groups:
        os.killpg(group, signal.SIGCONT)
    wait_for(lambda: not is_alive(trainer), what="the zombie's trainer", seconds=15)
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert (run.attempt, run.worker[:4]) == (2, "two@")
    assert run.events.filter(attempt=1).count() == known
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)
    assert (
        "no longer holds" in run_directory(run.id).attempt(1).supervisor_log.read_text()
    )
