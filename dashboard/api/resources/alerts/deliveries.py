"""What was sent to channels, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.alerts.channels import send_again
from dashboard.alerts.models import Delivery, DeliveryState
from dashboard.alerts.queries import (
    get_alert,
    get_channel,
    get_delivery,
    list_deliveries,
)
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_from
from dashboard.api.problems import or_conflict
from dashboard.api.schemas import LARGEST_ID, Done

router = Router(tags=["Alerts"], auth=READ)
Number = Annotated[int | None, Query(None, ge=1, le=LARGEST_ID)]


class DeliveryOut(Schema):
    id: UUID = Field(examples=["5f0c2f36-6a3e-4b2b-8c35-6f2f0a4d7e11"])
    channel_id: int = Field(examples=[2])
    event: str = Field(examples=["alert.fired"])
    alert_id: int | None = Field(examples=[9])
    run_id: int | None = Field(description="Of an event of a run.")
    state: DeliveryState = Field(examples=["sent"])
    num_attempts: int = Field(examples=[1])
    not_before: datetime = Field(description="The next attempt, of a pending one.")
    said: str = Field(description="Of the last attempt.", examples=["204 No Content"])
    created_at: datetime
    sent_at: datetime | None

    @classmethod
    def of(cls, row: Delivery) -> DeliveryOut:
        names = ("channel_id", "event", "alert_id", "run_id", "num_attempts", "said")
        more = ("created_at", "sent_at")
        fields = {name: getattr(row, name) for name in (*names, *more)}
        return cls(
            id=row.pk,
            state=DeliveryState(row.state),
            not_before=row.not_before,
            **fields,
        )


@router.get("", response=Page[DeliveryOut], summary="List deliveries")
def deliveries(
    request: HttpRequest,
    cursor: Cursor,
    limit: Limit,
    state: Annotated[DeliveryState | None, Query(None)],
    channel_id: Number,
    alert_id: Number,
) -> Page[Any]:
    """The newest first. Of one state, channel or alert where it is named."""
    team = access_of(request).team
    found = list_deliveries(team, state or "")
    if channel_id is not None:
        found = found.filter(channel=get_channel(team, channel_id))
    if alert_id is not None:
        found = found.filter(alert=get_alert(team, alert_id))
    return page_from(
        found, DeliveryOut.of, cursor=cursor, limit=limit, total=found.count()
    )


@router.get("/{delivery_id}", response=DeliveryOut, summary="Look at a delivery")
def delivery(request: HttpRequest, delivery_id: UUID) -> DeliveryOut:
    return DeliveryOut.of(get_delivery(access_of(request).team, delivery_id))


@router.post(
    "/{delivery_id}/again", response=Done, auth=WRITE, summary="Send a delivery again"
)
def send_delivery_again(request: HttpRequest, delivery_id: UUID) -> Done:
    """Under the same id, so that a receiver knows it; thirty an hour at most."""
    access = access_of(request)
    found = get_delivery(access.team, delivery_id)
    with or_conflict():
        is_waiting = send_again(delivery=found, user=access.user)
    if is_waiting:
        return Done(done=True)
    return Done(done=False, detail="It is still being tried.")
