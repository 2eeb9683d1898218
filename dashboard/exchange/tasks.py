from __future__ import annotations

from celery import shared_task

from dashboard.exchange.imports.files import forget_what_is_old


@shared_task(name="exchange.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_what_is_old()
