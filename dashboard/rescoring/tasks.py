from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dashboard.jobs.queue import advisory_lock
from dashboard.local import shutdown
from dashboard.rescoring.cleaning import forget_old_rescorings
from dashboard.rescoring.models import Rescoring, State
from dashboard.rescoring.services import TASK, reap, ring_workers
from dashboard.rescoring.work import claim_next, work_on


@shared_task(name=TASK, bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work(self: Task[..., Any]) -> None:
    """Do what waits, one after another, unless another slot of this worker is at it."""
    worker = self.request.hostname or "worker"
    with advisory_lock("rescoring", worker) as is_alone:
        while is_alone and not shutdown.is_announced() and (c := claim_next(worker)):
            work_on(c, is_shutting_down=shutdown.is_announced)


@shared_task(name="rescoring.look", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def look() -> None:
    """Queue again what nobody holds any more; ring for what waits."""
    reap()
    if Rescoring.objects.filter(state=State.QUEUED).exists():
        ring_workers()


@shared_task(name="rescoring.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_old_rescorings()
