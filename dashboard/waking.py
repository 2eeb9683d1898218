"""Waking workers: a task is put down for them, which says only that there is work."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

from dashboard.observability.requests import carry_requests

logger = logging.getLogger(__name__)

# Whether a message has ended is judged by the clock of the worker that takes it. Hours
# that it is wrong shall not matter, nor shall a message outlive days without workers.
DAY_SECONDS = 86_400


def wake(task: str, *, queue: str, expires: int, args: Sequence[str] = ()) -> None:
    """Best effort: whoever looks for work in the database rings again.

    `expires`: seconds after which nobody is woken by it.
    """
    carry_requests()
    try:
        # The web process has no Celery app of its own; it only puts a message down.
        with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
            # Kombu would try for 6 s, while a request waits.
            app.conf.broker_transport_options = {"max_retries": 0}
            app.send_task(task, args, queue=queue, expires=expires, retry=False)
    except OperationalError as error:
        logger.warning("Could not wake the %s workers by %s: %s", queue, task, error)
