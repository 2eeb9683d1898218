from __future__ import annotations

from celery import Task, shared_task

from dashboard.local import shutdown
from dashboard.probes.cleaning import forget_old_probes
from dashboard.probes.models import Probe, ProbeState
from dashboard.probes.services import QUEUE, TASK, reap, ring_workers
from dashboard.probes.work import claim_next, work_on


@shared_task(name=TASK, bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def work(self: Task[..., None]) -> None:
    """Take the oldest queued probe, if there is one, and see it through."""
    if shutdown.is_announced():
        return
    claim = claim_next(self.request.hostname or "worker")
    if claim is not None:
        work_on(claim, is_shutting_down=shutdown.is_announced)


@shared_task(name="probes.look", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def look(self: Task[..., None]) -> None:
    """Fail what nobody holds any more; ring for what waits, unless a ring waits too."""
    reap()
    num_queued = Probe.objects.filter(state=ProbeState.QUEUED).count()
    if not num_queued:
        return
    with self.app.connection_for_write() as broker:
        if broker.default_channel.client.llen(QUEUE) == 0:
            ring_workers()


@shared_task(name="probes.clean", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def clean() -> None:
    forget_old_probes()
