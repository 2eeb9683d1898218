"""An import saying that it is alive and how far it is, and hearing whether to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from dashboard.datasets.imports.jobs import Claim, is_to_give_way

logger = logging.getLogger(__name__)
BEAT_SECONDS = 1.0


class Halted(Exception):
    """The import is not to go on: what it was about to store must not be."""


class Pulse:
    """Counts what is done; beats in a thread where `beats`, on its own connection.

    The import's own is in a transaction while rows are stored, and nobody would see
    what is written there.
    """

    def __init__(self, claim: Claim, *, is_shutting_down: Callable[[], bool]) -> None:
        self.claim = claim
        self.is_shutting_down = is_shutting_down
        self._done: dict[str, Any] = {
            "num_read": 0,
            "num_rows_stored": 0,
            "num_rows": 0,
        }
        self._is_over = False  # asked to stop, or no longer ours
        self._gives_way = False  # it goes on when it is its turn again
        self._began = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def note_read(self, num_read: int, _all: int) -> None:
        self._done["num_read"] = num_read
        self._check()

    def note_fetched(self, num_bytes: int, total: int, remark: str) -> None:
        self._done.update(num_read=num_bytes, num_to_read=total, problem=remark)
        self._check()

    def note_stored(self, num_rows: int, total: int) -> None:
        self._done.update(num_rows_stored=num_rows, num_rows=total)
        self._check()

    def _check(self) -> None:
        if self._is_over or self._gives_way or self.is_shutting_down():
            raise Halted

    def _beat(self) -> None:
        try:
            while not self._end.wait(BEAT_SECONDS):
                self._say()
        finally:
            connection.close()

    def _say(self) -> None:
        held = self.claim.held().filter(stop_requested=False)
        try:
            self._is_over = not held.update(heartbeat=Now(), **self._done)
            num_seconds = time.monotonic() - self._began
            self._gives_way = is_to_give_way(self.claim, num_seconds)
        except DatabaseError as error:
            logger.warning("An import could not report to the database: %s", error)
            connection.close()
