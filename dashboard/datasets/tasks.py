from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dashboard.datasets import findings, leak_findings, row_orders, splits
from dashboard.datasets.jobs import claim_next
from dashboard.datasets.jobs import tend as tend_jobs
from dashboard.datasets.trash import forget_old_trash
from dashboard.datasets.uploads import forget_what_is_old
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


@shared_task(name="datasets.make_order", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_order(order_id: int) -> None:
    row_orders.make_order(order_id)


@shared_task(name="datasets.make_statistics", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_statistics(pk: int) -> None:
    findings.make_statistics(pk)


@shared_task(name="datasets.make_token_lengths", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_token_lengths(pk: int) -> None:
    findings.make_token_lengths(pk)


@shared_task(name="datasets.make_difference", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_difference(pk: int) -> None:
    findings.make_difference(pk)


@shared_task(name="datasets.make_leak", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_leak(pk: int) -> None:
    leak_findings.make_leak(pk)


@shared_task(name="datasets.make_split", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_split(pk: int) -> None:
    splits.make_split(pk)
