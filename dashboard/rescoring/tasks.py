from __future__ import annotations

from celery import shared_task

from dashboard.rescoring.cleaning import forget_old_rescorings


@shared_task(name="rescoring.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_old_rescorings()
