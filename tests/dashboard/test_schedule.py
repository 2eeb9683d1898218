"""Workers are notified through a broker; without one nothing fails."""

import logging
from queue import Empty

import pytest
from celery import Celery
from django.conf import settings

from dashboard.jobs.schedule import wake_workers

QUEUE = "waking-test"


def test_each_is_woken_by_a_task_of_the_queue():
    for _ in range(2):
        wake_workers("some.work", queue=QUEUE, expires=60)

    with (
        Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app,
        app.connection_for_read() as connection,
    ):
        queue = connection.SimpleQueue(QUEUE)
        tasks = [queue.get(block=False) for _ in range(2)]
        for task in tasks:
            task.ack()
        with pytest.raises(Empty):
            queue.get(block=False)
    assert [task.headers["task"] for task in tasks] == ["some.work"] * 2
    assert all(task.headers["expires"] for task in tasks)


def test_without_a_broker_it_is_noted_and_nothing_breaks(monkeypatch, caplog):
    nowhere = "redis+socket:///nowhere/redis.sock"
    monkeypatch.setattr(settings, "CELERY_BROKER_URL", nowhere)

    with caplog.at_level(logging.WARNING, logger="dashboard.jobs.schedule"):
        wake_workers("some.work", queue=QUEUE, expires=60)

    assert "some.work" in caplog.text
