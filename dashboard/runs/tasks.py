from __future__ import annotations

import time

from celery import shared_task

from dashboard.jobs.kinds import register_purge
from dashboard.runs.trash import delete_hidden_rows, forget_old_trash

SECONDS = 8.0  # beat rings every ten
register_purge(forget_old_trash)


@shared_task(name="runs.delete_rows", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def delete_rows() -> None:
    """Of runs that are deleted, for a while."""
    delete_hidden_rows(until=time.monotonic() + SECONDS)
