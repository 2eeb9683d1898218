from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dashboard.datasets.imports.jobs import claim_next
from dashboard.datasets.imports.jobs import tend as tend_jobs
from dashboard.datasets.imports.uploads import forget_what_is_old
from dashboard.datasets.trash import forget_old_trash
from dashboard.datasets.work import work_with_pulse
from dashboard.local import shutdown


@shared_task(name="datasets.work", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work(self: Task[..., Any]) -> None:
    """Do the imports that wait, one after another."""
    worker = self.request.hostname or "worker"
    while not shutdown.is_announced() and (claim := claim_next(worker)):
        work_with_pulse(claim, is_shutting_down=shutdown.is_announced)


@shared_task(name="datasets.tend", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def tend() -> None:
    tend_jobs()


@shared_task(name="datasets.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_what_is_old()
    forget_old_trash()
