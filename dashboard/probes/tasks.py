from __future__ import annotations

from celery import shared_task

from dashboard.probes.cleaning import forget_old_probes


@shared_task(name="probes.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_old_probes()
