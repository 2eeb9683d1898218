"""The queue of runs, and the workers that take them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db import transaction
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.access import require_workers
from dashboard.api.auth import ADMIN, READ, WRITE, ApiRequest
from dashboard.api.schemas import (
    Change,
    Cursor,
    Done,
    Id,
    Input,
    Limit,
    Page,
    Real,
    fill,
    page_by,
)
from dashboard.project.errors import or_404
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queries import get_run
from dashboard.runs.queue.changes import (
    hold_run,
    release_run,
    set_priority,
    team_queue,
)
from dashboard.runs.queue.messages import describe_position
from dashboard.runs.queue.order import read_queue
from dashboard.supervision.lease import drain, undrain
from dashboard.supervision.models import Worker
from dashboard.supervision.worker_hosts import describe_workers

router = Router(tags=["Queue"], auth=READ)
workers_router = Router(tags=["Workers"], auth=READ)


class QueuedRun(Schema):
    run_id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    priority: str = Field(description="low, normal or high", examples=["normal"])
    is_on_hold: bool
    place: int | None = Field(
        description="Position among all teams' runs, from 1; null if it cannot start.",
        examples=[2],
    )
    num_foreign_before: int = Field(description="Runs of other teams ahead of it.")
    start_seconds: Real = Field(
        description="Estimated time until it starts; null if unknown."
    )
    sentence: str = Field(examples=["Next in the queue: the only worker is busy."])


class QueueOut(Schema):
    items: list[QueuedRun] = Field(description="The team's queued runs, in order.")
    num_foreign_after: int = Field(description="Runs of other teams after these.")
    num_slots: int = Field(description="Slots of live workers.", examples=[1])
    num_busy: int = Field(examples=[1])


@router.get("", response=QueueOut, summary="Get the queue")
def queue(request: ApiRequest) -> QueueOut:
    """List the team's queued runs, with their positions among all teams' runs."""
    current = read_queue()
    own = team_queue(request.auth.team, current)
    return QueueOut(
        items=[
            QueuedRun(
                run_id=entry.run.pk,
                name=entry.run.name,
                priority=str(Priority(entry.run.priority).label),
                is_on_hold=entry.run.on_hold,
                place=entry.position.number,
                num_foreign_before=entry.position.num_foreign_before,
                start_seconds=entry.position.start.seconds,
                sentence=" ".join(
                    filter(
                        None,
                        (
                            describe_position(entry.position, current),
                            entry.cluster_lack,
                        ),
                    )
                ),
            )
            for entry in own.entries
        ],
        num_foreign_after=own.num_foreign_after,
        num_slots=current.num_slots,
        num_busy=current.num_busy,
    )


class QueueChange(Change):
    priority: Literal["low", "normal", "high"] | None = Field(
        default=None, description="Among the team's own runs.", examples=["high"]
    )
    is_on_hold: bool | None = Field(
        default=None, description="True keeps workers from taking it."
    )


class CurrentValues(Schema):
    """The current values, for the comparison with `was`."""

    priority: str
    is_on_hold: bool


@router.patch(
    "/{run_id}",
    response=Done,
    auth=WRITE,
    summary="Change a run's position in the queue",
)
def change_queued_run(request: ApiRequest, run_id: Id, payload: QueueChange) -> Done:
    """Runs of other teams keep their positions."""
    run = get_run(request.auth.team, run_id)
    user, changed = request.auth.user, []
    with transaction.atomic():
        locked = Run.objects.select_for_update().get(pk=run.pk)
        label = Priority(locked.priority).label
        values = CurrentValues(priority=label, is_on_hold=locked.on_hold)
        sent = payload.over(values)
        if (named := sent.get("priority")) is not None:
            priority = Priority[named.upper()]
            changed.append(set_priority(run=run, user=user, priority=priority))
            run.refresh_from_db(fields=["priority"])
        if (is_on_hold := sent.get("is_on_hold")) is not None:
            change = hold_run if is_on_hold else release_run
            changed.append(change(run=run, user=user))
    if any(changed):
        return Done(done=True)
    run.refresh_from_db(fields=["state"])
    if run.state != RunState.QUEUED:
        return Done(done=False, detail=f"Not changed: the run is {run.state}.")
    return Done(done=False, detail="Not changed: already set, or the queue changed.")


# Training workers, which all teams of the server share.


class WorkerOut(Schema):
    id: int
    name: str = Field(examples=["gpu@node-1:4242"])
    host: str = Field(examples=["node-1"])
    num_slots: int = Field(description="Runs that it can train at once.", examples=[1])
    hardware: dict[str, Any] = Field(examples=[{"num_cores": 16, "gpus": []}])
    notice: str = Field(description="Why it does not take a queued run.")
    is_drained: bool
    started_at: datetime
    last_seen: datetime
    stopped_at: datetime | None
    status: str = Field(description="idle, busy, gone or stopped", examples=["busy"])
    run_ids: list[int] = Field(description="The team's runs on it.", examples=[[7]])
    num_foreign_runs: int = Field(description="Number of other teams' runs on it.")


@workers_router.get("", response=Page[WorkerOut], summary="List workers")
def workers(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Workers of the server, newest first, with the team's runs on them."""
    page: Page[Any] = page_by(
        Worker.objects.all(), lambda worker: worker, cursor=cursor, limit=limit
    )
    cards = describe_workers(page.items, team=request.auth.team)
    cards.sort(key=lambda card: -card.worker.pk)
    page.items = [
        fill(
            WorkerOut,
            card.worker,
            status=card.status,
            run_ids=[run.pk for run in card.runs],
            num_foreign_runs=card.num_foreign_runs,
            is_drained=card.worker.drained_at is not None,
        )
        for card in cards
    ]
    return page


class WorkerChange(Input):
    is_drained: bool = Field(
        description="True: it finishes its runs and accepts no new ones.",
        examples=[True],
    )


@workers_router.patch(
    "/{worker_id}", response=Done, auth=ADMIN, summary="Drain or undrain a worker"
)
def drain_worker(request: ApiRequest, worker_id: Id, payload: WorkerChange) -> Done:
    """Drain or undrain a worker. All teams share the workers, so this takes an
    operator's token, or an admin's where there is one team.
    """
    require_workers(request.auth.membership)
    row = Worker.objects.filter(pk=worker_id).first()
    worker = or_404(row, f"Worker {worker_id} not found.")
    change = drain if payload.is_drained else undrain
    if change(worker, team=request.auth.team, user=request.auth.user):
        return Done(done=True)
    state = "drained" if payload.is_drained else "undrained"
    return Done(done=False, detail=f"The worker is already {state}.")
