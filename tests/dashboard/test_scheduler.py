"""What beat sends: no clock of a worker decides whether it is heeded."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.conf import settings

from dashboard.celery import app as cohort
from dashboard.jobs.schedule import Scheduler

QUEUE = settings.CELERY_TASK_DEFAULT_QUEUE


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
        app.conf.task_default_queue = QUEUE
        yield app
        with app.connection_for_write() as broker:
            broker.default_channel.client.delete(QUEUE)


@pytest.fixture
def scheduler(app, tmp_path) -> Iterator[Scheduler]:
    with app.connection_for_write() as broker:  # others may have left something
        broker.default_channel.client.delete(QUEUE)
    entry = {"task": "training.reap", "schedule": 0.0}
    app.conf.beat_schedule = {"a": entry, "b": {**entry, "task": "training.dispatch"}}
    scheduler = Scheduler(app, schedule_filename=str(tmp_path / "schedule"))
    yield scheduler
    scheduler.close()


def take_all(app: Celery) -> list[dict[str, Any]]:
    """The headers of what waits."""
    with app.connection_for_write() as broker:
        client = broker.default_channel.client
        messages = client.lrange(QUEUE, 0, -1)
        client.delete(QUEUE)
    return [json.loads(message)["headers"] for message in messages]


def tick(scheduler: Scheduler, times: int) -> None:
    for _ in range(times):
        scheduler.tick()


def test_at_most_one_message_of_a_task_waits(app, scheduler):
    tick(scheduler, times=8)
    first = sorted(headers["task"] for headers in take_all(app))

    tick(scheduler, times=8)
    again = sorted(headers["task"] for headers in take_all(app))

    assert first == again == ["training.dispatch", "training.reap"]


def test_no_clock_ends_a_message(app, scheduler):
    tick(scheduler, times=4)

    assert {headers["expires"] for headers in take_all(app)} == {None}
    assert cohort.conf.beat_scheduler == "dashboard.jobs.schedule:Scheduler"
    entries = cohort.conf.beat_schedule.values()
    assert not any("expires" in entry.get("options", {}) for entry in entries)


def test_dispatch_runs_as_often_as_documented():
    for task, promised_seconds in [
        ("training.dispatch", 5),  # a queued run is rung for
        ("training.reap", 5),  # a lease that is over is found
        ("training.go_on", 30),  # a run that waits for disk space continues
    ]:
        entries = cohort.conf.beat_schedule.values()
        [seconds] = [entry["schedule"] for entry in entries if entry["task"] == task]

        assert 0 < seconds <= promised_seconds, task


def test_each_task_that_beat_sends_is_one_of_cohorts():
    cohort.loader.import_default_modules()
    sent = {entry["task"] for entry in cohort.conf.beat_schedule.values()}

    assert sent <= set(cohort.tasks)


def test_without_a_broker_it_continues():
    with Celery(
        broker="redis+socket:///nowhere/redis.sock", set_as_current=False
    ) as app:
        app.conf.broker_transport_options = {"max_retries": 0}
        assert Scheduler(app, lazy=True)._list_waiting() == set()
