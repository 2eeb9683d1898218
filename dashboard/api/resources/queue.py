"""The queue, and what changes the team's part of it."""

from __future__ import annotations

from typing import Literal

from django.db import transaction
from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.schemas import Change, Done, Id, Real
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.progress import say_place
from dashboard.runs.queries import get_run
from dashboard.runs.queue.changes import (
    hold_run,
    move_run,
    release_run,
    set_priority,
    team_line,
)
from dashboard.runs.queue.order import read_line

router = Router(tags=["Queue"], auth=READ)


class QueuedRun(Schema):
    run_id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    priority: str = Field(description="low, normal or high", examples=["normal"])
    is_on_hold: bool
    place: int | None = Field(
        description="Among all teams' runs, from 1; null: it could not start now.",
        examples=[2],
    )
    num_foreign_before: int = Field(description="Of other teams, among those before.")
    start_seconds: Real = Field(
        description="Until it starts, as is expected; null: not known."
    )
    sentence: str = Field(examples=["Next in line: the one worker is busy."])
    can_rise: bool
    can_sink: bool


class QueueOut(Schema):
    items: list[QueuedRun] = Field(description="The team's, in their order.")
    num_foreign_after: int = Field(description="Other teams' runs behind them.")
    num_slots: int = Field(description="Of the workers that are alive.", examples=[1])
    num_busy: int = Field(examples=[1])


@router.get("", response=QueueOut, summary="Look at the queue")
def queue(request: HttpRequest) -> QueueOut:
    """The team's queued runs, each with its place among those of all teams."""
    line = read_line()
    own = team_line(access_of(request).team, line)
    return QueueOut(
        items=[
            QueuedRun(
                run_id=entry.run.pk,
                name=entry.run.name,
                priority=str(Priority(entry.run.priority).label),
                is_on_hold=entry.run.on_hold,
                place=entry.place.number,
                num_foreign_before=entry.place.num_foreign_before,
                start_seconds=entry.place.start.seconds,
                sentence=say_place(entry.place, line),
                can_rise=entry.can_rise,
                can_sink=entry.can_sink,
            )
            for entry in own.entries
        ],
        num_foreign_after=own.num_foreign_after,
        num_slots=line.num_slots,
        num_busy=line.num_busy,
    )


class QueueChange(Change):
    priority: Literal["low", "normal", "high"] | None = Field(
        default=None, description="Among the team's own runs.", examples=["high"]
    )
    is_on_hold: bool | None = Field(
        default=None, description="True: no worker takes it."
    )
    move: Literal["front", "up", "down"] | None = Field(
        default=None, description="Among the team's queued runs of its priority."
    )


class Place(Schema):
    """What a run's changes are compared with."""

    priority: str
    is_on_hold: bool


@router.patch(
    "/{run_id}", response=Done, auth=WRITE, summary="Change a run's place in the queue"
)
def change_queued_run(request: HttpRequest, run_id: Id, payload: QueueChange) -> Done:
    """Other teams' runs keep their places."""
    access = access_of(request)
    run = get_run(access.team, run_id)
    user, changed = access.user, []
    with transaction.atomic():
        held = Run.objects.select_for_update().get(pk=run.pk)
        label = Priority(held.priority).label
        place = Place(priority=label, is_on_hold=held.on_hold)
        sent = payload.over(place)
        if (named := sent.get("priority")) is not None:
            priority = Priority[named.upper()]
            changed.append(set_priority(run=run, user=user, priority=priority))
            run.refresh_from_db(fields=["priority"])
        if (is_on_hold := sent.get("is_on_hold")) is not None:
            change = hold_run if is_on_hold else release_run
            changed.append(change(run=run, user=user))
        if payload.move is not None:
            changed.append(move_run(run=run, user=user, where=payload.move))
    if any(changed):
        return Done(done=True)
    run.refresh_from_db(fields=["state"])
    if run.state != RunState.QUEUED:
        return Done(done=False, detail=f"Nothing changed: the run is {run.state}.")
    return Done(done=False, detail="It is so already, or the queue changed meanwhile.")
