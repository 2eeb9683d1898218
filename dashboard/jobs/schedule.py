"""Notifies workers that there is work, by messages without content; schedules tasks."""

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

# The clock of the receiving worker decides whether a message has expired: one that is
# hours off must not matter, and no message should survive days without workers.
DAY_SECONDS = 86_400


def wake_workers(
    task: str, *, queue: str, expires: int, args: Sequence[str] = ()
) -> None:
    """Best effort: periodic tasks find jobs in the database and notify again.

    `expires`: seconds after which the message has no effect.
    """
    carry_requests()
    try:
        # The web process has no Celery app of its own; it only publishes messages.
        with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
            # Kombu would try for 6 s, while a request waits.
            app.conf.broker_transport_options = {"max_retries": 0}
            app.send_task(task, args, queue=queue, expires=expires, retry=False)
    except OperationalError as error:
        logger.warning(
            "Failed to notify the %s workers through %s: %s", queue, task, error
        )


def count_waiting(app: Celery, queue: str) -> int:
    """Count messages without a worker; they must not pile up while all are busy."""
    with app.connection_for_write() as broker:
        channel: Any = broker.default_channel  # with Redis's client
        return int(channel.client.llen(queue))


class Scheduler(PersistentScheduler):
    """At most one message per task waits, so that none pile up without workers.

    Messages do not expire: the clock of the receiving worker would decide, and a clock
    a few seconds ahead would discard everything.
    """

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        if entry.task not in self._list_waiting():
            super().apply_entry(entry, producer=producer)

    def _list_waiting(self) -> set[str]:
        """Tasks whose messages no worker has received."""
        queue = settings.CELERY_TASK_DEFAULT_QUEUE
        try:
            with self.app.connection_for_write() as broker:
                channel: Any = broker.default_channel  # with Redis's client
                messages = channel.client.lrange(queue, 0, -1)
        except (OperationalError, RedisError, OSError):
            return set()  # reported when sending is attempted
        return {json.loads(message)["headers"]["task"] for message in messages}
