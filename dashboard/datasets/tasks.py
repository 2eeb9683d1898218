from __future__ import annotations

from celery import shared_task

from dashboard.datasets.imports.uploads import forget_what_is_old
from dashboard.datasets.trash import forget_old_trash


@shared_task(name="datasets.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_what_is_old()
    forget_old_trash()
