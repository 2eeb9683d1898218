from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dashboard.datasets import splits
from dashboard.datasets.background import do_what_waits, forget_what_was_done
from dashboard.datasets.background import tend as tend_looks
from dashboard.datasets.findings import differences, leaks, statistics, token_lengths
from dashboard.datasets.imports.jobs import claim_next
from dashboard.datasets.imports.jobs import tend as tend_jobs
from dashboard.datasets.imports.uploads import forget_what_is_old
from dashboard.datasets.rows import orders
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
    tend_looks()


@shared_task(name="datasets.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_what_is_old()
    forget_old_trash()
    forget_what_was_done()


MAKERS = {
    orders.TASK: orders.make_order,
    statistics.TASK: statistics.make_statistics,
    token_lengths.TASK: token_lengths.make_token_lengths,
    differences.TASK: differences.make_difference,
    leaks.TASK: leaks.make_leak,
    splits.TASK: splits.make_split,
}


@shared_task(name="datasets.look", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def look(self: Task[..., Any]) -> None:
    """Do what pages wait for, one after another."""
    do_what_waits(
        MAKERS,
        worker=self.request.hostname or "worker",
        is_shutting_down=shutdown.is_announced,
    )
