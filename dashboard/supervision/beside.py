"""Jobs on the CPU of a training worker whose slots are all held by runs."""

from __future__ import annotations

import threading

from django.db import connection

from dashboard.jobs.kinds import Claim, Context
from dashboard.jobs.queue import claim_beside
from dashboard.jobs.runner import run
from dashboard.runs.models import HELD, Run
from dashboard.supervision.lease import is_drained

STOP_SECONDS = 10.0


class JobsBesideRuns:
    """Does one such job at a time, so that tests need not wait for a run's end."""

    def __init__(self, worker: str, *, queue: str, num_slots: int) -> None:
        self._worker = worker
        self._queue = queue
        self._num_slots = num_slots
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def tick(self) -> None:
        """DatabaseError: the next call goes on."""
        if self._thread is not None and self._thread.is_alive():
            return
        held = Run.objects.filter(worker=self._worker, state__in=HELD)
        if held.count() < self._num_slots or is_drained(self._worker):
            return
        if claim := claim_beside(self._queue, self._worker):
            self._thread = threading.Thread(
                target=self._do, args=(claim,), name="beside", daemon=True
            )
            self._thread.start()

    def _do(self, claim: Claim) -> None:
        try:
            context = Context(claim, is_shutting_down=self._ends.is_set)
            context.is_beside = True
            run(context)
        finally:
            connection.close()

    def stop(self) -> None:
        """Give a job back, which another worker takes."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(timeout=STOP_SECONDS)
