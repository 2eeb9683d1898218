from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dashboard.exchange.imports import claims, jobs
from dashboard.exchange.imports.files import forget_what_is_old
from dashboard.exchange.imports.work import work_with_pulse
from dashboard.local import shutdown


@shared_task(name="exchange.work", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work(self: Task[..., Any]) -> None:
    """Do the imports that wait, one after another."""
    with claims.alone(self.request.hostname or "worker") as is_alone:
        while (
            is_alone and not shutdown.is_announced() and (claim := claims.claim_next())
        ):
            work_with_pulse(claim, is_shutting_down=shutdown.is_announced)


@shared_task(name="exchange.tend", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def tend() -> None:
    jobs.tend()


@shared_task(name="exchange.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_what_is_old()
