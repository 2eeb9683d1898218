"""A rescoring saying that it is alive, and hearing whether to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.db.models.functions import Now

from dashboard.rescoring.models import Rescoring, State
from dashboard.rescoring.timing import BEAT_SECONDS, LEASE

logger = logging.getLogger(__name__)


class Pulse:
    """Beats in a thread, on its own connection: a judge may take minutes to answer."""

    def __init__(
        self,
        held: Callable[[], QuerySet[Rescoring]],
        *,
        on_end: Callable[[], None],
        beats: bool,
    ) -> None:
        """
        Args:
            held: the row, as long as it is ours.
            on_end: called once when it is to stop, or is no longer ours.
            beats: False for a job that another connection does not see yet.
        """
        self._beats = beats
        self._held = held
        self._on_end = on_end
        self.num_done = 0
        self.is_lost = False
        self.is_stopping = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    @property
    def is_over(self) -> bool:
        return self.is_lost or self.is_stopping

    def __enter__(self) -> Pulse:
        if self._beats:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._beats:
            self._thread.join(timeout=5)

    def _beat(self) -> None:
        try:
            while not self._ended.wait(BEAT_SECONDS):
                self._say()
                if self.is_over:
                    self._on_end()
                    return
        finally:
            connection.close()

    def _say(self) -> None:
        try:
            held = self._held()
            self.is_lost = not held.update(
                lease_until=Now() + LEASE, num_done=self.num_done
            )
            self.is_stopping = held.filter(state=State.STOPPING).exists()
        except DatabaseError as error:
            logger.warning("A rescoring could not report to the database: %s", error)
            connection.close()
