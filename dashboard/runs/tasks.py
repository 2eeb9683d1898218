from __future__ import annotations

from celery import shared_task

from dashboard.runs.trash import forget_old_trash


@shared_task(name="runs.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_old_trash()
