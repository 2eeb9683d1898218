"""What sends the tasks that are due every few seconds.

None of their messages ends by itself: that would be judged by the clock of the worker
which takes it, and one whose clock is a few seconds ahead would do nothing at all.
"""

from __future__ import annotations

import json
from typing import Any

from celery.beat import PersistentScheduler
from django.conf import settings
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError


class Scheduler(PersistentScheduler):  # type: ignore[misc]  # Celery has no types
    """Of each task one message waits at most, so that none pile up without workers."""

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
