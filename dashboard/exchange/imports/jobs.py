"""Imports as jobs: queued, stopped, put back where a worker is lost.

Every change of an import's state is one guarded UPDATE, by the database's own clock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from dashboard.datasets.limits import AT_ONCE_BYTES
from dashboard.exchange.imports.claims import claim_import
from dashboard.exchange.imports.work import MAX_ATTEMPTS, work
from dashboard.exchange.models import RunImport
from dashboard.waking import DAY_SECONDS, wake

State, Phase = RunImport.State, RunImport.Phase
GONE_AFTER = timedelta(seconds=20)  # without a beat


def queue(run_import: RunImport, phase: RunImport.Phase, **fields: Any) -> bool:
    """Let it be read, or made; False where it is at work, or made already.

    What is small is done at once, while the page is made.
    """
    idle = RunImport.objects.filter(pk=run_import.pk, run=None)
    num_bytes = sum(run_import.files.values_list("num_bytes", flat=True))
    queued = idle.exclude(state__in=RunImport.LIVE).update(
        phase=phase,
        state=State.QUEUED,
        queued_at=Now(),
        stop_requested=False,
        attempt=0,
        problem="",
        ended_at=None,
        num_read=0,
        num_to_read=num_bytes,
        num_stored=0,
        num_steps=0,
        **fields,
    )
    if not queued:
        return False
    if num_bytes > AT_ONCE_BYTES:
        ring()
    elif claim := claim_import(run_import.pk):  # None: a worker found it first
        work(claim)
    run_import.refresh_from_db()
    return True


def request_stop(run_import: RunImport) -> bool:
    """Stop it now where nobody works on it; False when it has ended."""
    same = RunImport.objects.filter(pk=run_import.pk)
    queued = same.filter(state=State.QUEUED)
    return bool(
        queued.update(state=State.CANCELLED, ended_at=Now())
        or same.filter(state=State.RUNNING).update(stop_requested=True)
    )


def tend() -> None:
    """Find what has no worker any more, and ring for what waits."""
    _reap(RunImport.objects.all())
    if RunImport.objects.filter(state=State.QUEUED).exists():
        ring()


def reap(run_import: RunImport) -> None:
    if run_import.state == State.RUNNING:
        _reap(RunImport.objects.filter(pk=run_import.pk))
        run_import.refresh_from_db()


def _reap(imports: QuerySet[RunImport]) -> None:
    """Put back, or end, what was not heard of. Nothing of it was stored."""
    lost = imports.filter(state=State.RUNNING, heartbeat__lt=Now() - GONE_AFTER)
    lost.filter(stop_requested=True).update(state=State.CANCELLED, ended_at=Now())
    lost.filter(attempt__gte=MAX_ATTEMPTS).update(
        state=State.FAILED,
        ended_at=Now(),
        problem=f"{MAX_ATTEMPTS} times its worker ended in the middle of it, perhaps "
        "for want of memory. Nothing was stored. Look into the log of the default "
        "worker, then try again.",
    )
    lost.update(state=State.QUEUED, queued_at=Now())


def ring() -> None:
    """Wake a default worker. Best effort: beat has it rung again every 5 s."""
    wake("exchange.work", queue="default", expires=DAY_SECONDS)
