from __future__ import annotations

from celery import shared_task

from dashboard.alerts.delivery import alone, deliver_due, forget_old
from dashboard.jobs import shutdown
from dashboard.jobs.kinds import register_purge

register_purge(forget_old)


@shared_task(name="alerts.deliver", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def deliver() -> None:
    with alone() as is_alone:
        while is_alone and not shutdown.is_announced() and deliver_due():
            pass
