"""Training workers, which all teams of the server share."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.schemas import Done, Id
from dashboard.training.draining import drain, undrain
from dashboard.training.models import Worker

router = Router(tags=["Workers"], auth=READ)


class WorkerOut(Schema):
    id: int
    name: str = Field(examples=["gpu@node-1:4242"])
    host: str = Field(examples=["node-1"])
    num_slots: int = Field(description="Runs that it holds at once.", examples=[1])
    hardware: dict[str, Any] = Field(examples=[{"num_cores": 16, "gpus": []}])
    notice: str = Field(description="Why it leaves a queued run alone.")
    is_drained: bool
    started_at: datetime
    last_seen: datetime
    stopped_at: datetime | None


def _worker(worker: Worker) -> WorkerOut:
    return WorkerOut(
        id=worker.pk,
        name=worker.name,
        host=worker.host,
        num_slots=worker.num_slots,
        hardware=worker.hardware,
        notice=worker.notice,
        is_drained=worker.drained_at is not None,
        started_at=worker.started_at,
        last_seen=worker.last_seen,
        stopped_at=worker.stopped_at,
    )


@router.get("", response=Page[WorkerOut], summary="List workers")
def workers(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Of the whole server, the newest first; `last_seen` says whether one lives."""
    found = Worker.objects.all()
    return page_by(found, _worker, cursor=cursor, limit=limit, total=found.count())


@router.post("/{worker_id}/drain", response=Done, auth=ADMIN, summary="Drain a worker")
def drain_worker(request: HttpRequest, worker_id: Id) -> Done:
    """It finishes what it runs and takes nothing new."""
    access = access_of(request)
    worker = _find(worker_id)
    if drain(worker, team=access.team, user=access.user):
        return Done(done=True)
    return Done(done=False, detail=f"{worker} is drained already.")


@router.post(
    "/{worker_id}/undrain", response=Done, auth=ADMIN, summary="Undrain a worker"
)
def undrain_worker(request: HttpRequest, worker_id: Id) -> Done:
    """It takes runs again."""
    access = access_of(request)
    worker = _find(worker_id)
    if undrain(worker, team=access.team, user=access.user):
        return Done(done=True)
    return Done(done=False, detail=f"{worker} is not drained.")


def _find(worker_id: int) -> Worker:
    worker = Worker.objects.filter(pk=worker_id).first()
    if worker is None:
        raise Http404(f"There is no worker {worker_id}.")
    return worker
