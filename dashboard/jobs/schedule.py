"""Wakes workers by messages that say only that there is work, and schedules tasks."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler
from django.conf import settings
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dashboard.observability.requests import carry_requests

logger = logging.getLogger(__name__)

# Whether a message has ended is judged by the clock of the worker that takes it. Hours
# that it is wrong shall not matter, nor shall a message outlive days without workers.
DAY_SECONDS = 86_400


def wake_workers(
    task: str, *, queue: str, expires: int, args: Sequence[str] = ()
) -> None:
    """Best effort: periodic tasks find jobs in the database and send it again.

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
        logger.warning(
            "Failed to notify the %s workers through %s: %s", queue, task, error
        )


class Scheduler(PersistentScheduler):  # type: ignore[misc]  # Celery has no types
    """Of each task one message waits at most, so that none pile up without workers.

    No message expires: the clock of the worker that takes it would decide, and one that
    is a few seconds ahead would do nothing at all.
    """

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        if entry.task not in self._list_waiting():
            super().apply_entry(entry, producer=producer)

    def _list_waiting(self) -> set[str]:
        """The tasks whose messages no worker has taken."""
        queue = settings.CELERY_TASK_DEFAULT_QUEUE
        try:
            with self.app.connection_for_write() as broker:
                messages = broker.default_channel.client.lrange(queue, 0, -1)
        except (OperationalError, RedisError, OSError):
            return set()  # that it cannot be sent is said when it is tried
        return {json.loads(message)["headers"]["task"] for message in messages}
