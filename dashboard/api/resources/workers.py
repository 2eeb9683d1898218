"""Training workers, which all teams of the server share."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.schemas import Done, Id, Input, fill
from dashboard.training.lease import drain, undrain
from dashboard.training.models import Worker
from dashboard.training.worker_hosts import WorkerCard, describe_workers

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
    status: str = Field(description="idle, busy, gone or stopped", examples=["busy"])
    run_ids: list[int] = Field(description="The team's, that it holds.", examples=[[7]])
    num_foreign_runs: int = Field(description="Other teams', not named.")


def _worker(card: WorkerCard) -> WorkerOut:
    worker = card.worker
    return fill(
        WorkerOut,
        worker,
        status=card.status,
        run_ids=[run.pk for run in card.runs],
        num_foreign_runs=card.num_foreign_runs,
        is_drained=worker.drained_at is not None,
    )


@router.get("", response=Page[WorkerOut], summary="List workers")
def workers(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Of the whole server, the newest first, with what they run of the team's."""
    found = Worker.objects.all()
    page: Page[Any] = page_by(found, lambda one: one, cursor=cursor, limit=limit)
    cards = describe_workers(page.items, team=access_of(request).team)
    by_worker = {card.worker.pk: _worker(card) for card in cards}
    page.items = [by_worker[worker.pk] for worker in page.items]
    return page


class WorkerChange(Input):
    is_drained: bool = Field(
        description="True: it finishes what it runs and takes nothing new.",
        examples=[True],
    )


@router.patch(
    "/{worker_id}", response=Done, auth=ADMIN, summary="Drain or undrain a worker"
)
def drain_worker(request: HttpRequest, worker_id: Id, payload: WorkerChange) -> Done:
    access = access_of(request)
    worker = _find(worker_id)
    change = drain if payload.is_drained else undrain
    if change(worker, team=access.team, user=access.user):
        return Done(done=True)
    return Done(done=False, detail="It is so already.")


def _find(worker_id: int) -> Worker:
    worker = Worker.objects.filter(pk=worker_id).first()
    if worker is None:
        raise Http404(f"There is no worker {worker_id}.")
    return worker
