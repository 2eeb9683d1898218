"""Stores every 5 s what a run's machine uses, beside the supervisor; never fails it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Self

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models.functions import Now

from dashboard.runs.models import Epoch
from dashboard.training.lease import Claim
from dashboard.training.models import SystemSample
from dashboard.training.system.reader import Reader
from dashboard.training.system.samples import MAX_ROWS, halve

logger = logging.getLogger(__name__)
FIRST_SECONDS = 1.0
SAMPLE_SECONDS = 5.0


class SystemSampler:
    def __init__(
        self,
        claim: Claim,
        *,
        pid: int,
        read_step: Callable[[], int],
        every: float = SAMPLE_SECONDS,
    ) -> None:
        self._claim = claim
        self._pid = pid
        self._read_step = read_step
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="system", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        reader = Reader(Path(settings.COHORT_DATA), pid=self._pid)
        wait = min(FIRST_SECONDS, self._every)
        try:
            while not self._end.wait(wait):
                wait = self._every
                self._sample(reader)
        finally:
            connection.close()

    def _sample(self, reader: Reader) -> None:
        values = reader.read()
        run_id, epoch = self._claim.run_id, self._claim.epoch
        try:
            # Of a run that another worker has claimed since, nothing is told any more.
            lives = Epoch.objects.filter(run_id=run_id, number=epoch, run__epoch=epoch)
            from_step = lives.values_list("from_step", flat=True).first()
            if from_step is None:
                return
            sample = SystemSample.objects.create(
                run_id=run_id,
                epoch=epoch,
                step=max(from_step, self._read_step()),  # a resume has none at first
                time=Now(),
                values=values,
            )
            if sample.pk % 100 == 0 or self._every < 1:
                self._bound(run_id)
        except DatabaseError as error:
            logger.debug("Run %d: no system sample: %s", run_id, error)
            connection.close()

    def _bound(self, run_id: int) -> None:
        if SystemSample.objects.filter(run_id=run_id).count() > MAX_ROWS:
            halve(run_id)
