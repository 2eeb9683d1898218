"""Ringing the training workers for runs that wait."""

from __future__ import annotations

from celery import Celery

from dashboard.jobs.schedule import DAY_SECONDS
from dashboard.training.lease import startable

QUEUE = "training"


def dispatch(app: Celery) -> int:
    """One message for each run that may start and has none waiting; how many."""
    num_startable = startable().count()
    if not num_startable:
        return 0
    num_rings = max(0, num_startable - count_waiting(app))
    for _ in range(num_rings):
        app.send_task("training.work", queue=QUEUE, expires=DAY_SECONDS)
    return num_rings


def count_waiting(app: Celery) -> int:
    """Messages that no worker has taken; while all are busy they must not pile up."""
    with app.connection_for_write() as broker:
        return int(broker.default_channel.client.llen(QUEUE))
