from __future__ import annotations

import time

from celery import shared_task

from dashboard.jobs import shutdown
from dashboard.samples.search.making import index_run, runs_to_index
from dashboard.samples.search.turn import take_turn

SECONDS = 8.0  # beat rings every ten


@shared_task(name="samples.index", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def index() -> None:
    """Make blocks of the steps that have none, for a while."""
    until = time.monotonic() + SECONDS
    with take_turn() as is_mine:
        if not is_mine:
            return
        for run in runs_to_index():
            if shutdown.is_announced() or time.monotonic() >= until:
                return
            index_run(run, until=until)
