"""An import saying that it is alive and how far it is, and hearing whether to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from dashboard.exchange.imports.claims import Claim

logger = logging.getLogger(__name__)
BEAT_SECONDS = 1.0


class Halted(Exception):
    """Not to go on: what was about to be stored must not be."""


class Pulse:
    """Beats in a thread, on a connection of its own: the work is in a transaction."""

    def __init__(
        self, claim: Claim, *, is_shutting_down: Callable[[], bool] = lambda: False
    ) -> None:
        self._claim = claim
        self._is_shutting_down = is_shutting_down
        self._done: dict[str, int] = {}
        self._is_over = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def note_read(self, num_bytes: int) -> None:
        self._note(num_read=num_bytes)

    def note_stored(self, num_stored: int, num_steps: int) -> None:
        self._note(num_stored=num_stored, num_steps=num_steps)

    def _note(self, **done: int) -> None:
        self._done |= done
        if self._is_over or self._is_shutting_down():
            raise Halted

    def _beat(self) -> None:
        try:
            while not self._end.wait(BEAT_SECONDS):
                self._say()
        finally:
            connection.close()

    def _say(self) -> None:
        held = self._claim.held().filter(stop_requested=False)
        try:
            self._is_over = not held.update(heartbeat=Now(), **dict(self._done))
        except DatabaseError as error:
            logger.warning("An import could not report to the database: %s", error)
            connection.close()
