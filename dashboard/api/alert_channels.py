"""Where a team's alerts go: e-mail addresses and webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from django.db import transaction
from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.alerts.forms import ChannelForm
from dashboard.alerts.messages import signing_secret
from dashboard.alerts.models import Channel, Event
from dashboard.alerts.queries import get_channel
from dashboard.alerts.services import (
    add_channel,
    choose_events,
    delete_channel,
    shown_address,
    switch_channel,
)
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.guards import show_once
from dashboard.api.problems import or_conflict
from dashboard.api.schemas import Change, Done, Id, Input, fill, refuse_errors

router = Router(tags=["Alerts"], auth=READ)


class ChannelOut(Schema):
    id: int = Field(examples=[2])
    kind: str = Field(examples=["webhook"])
    address: str = Field(
        description="For a webhook, only the host: the path may contain a key.",
        examples=["https://hooks.example.org/…"],
    )
    events: list[str] = Field(examples=[["alert.fired", "run.failed"]])
    is_enabled: bool
    gave_up: str = Field(
        description="Why Cohort switched the channel off.", examples=[""]
    )
    created_at: datetime

    @classmethod
    def of(cls, channel: Channel) -> ChannelOut:
        return fill(cls, channel, address=shown_address(channel))


class ChannelsOut(Schema):
    items: list[ChannelOut]


class RevealedChannel(ChannelOut):
    secret: str | None = Field(
        description="Signs the messages of a webhook. Shown once; a repeat with the "
        "same Idempotency-Key returns null.",
        examples=["whsec_…"],
    )


def _reveal(request: HttpRequest, channel: Channel) -> RevealedChannel:
    show_once(request, "secret")
    is_signed = channel.kind == Channel.Kind.WEBHOOK
    secret = signing_secret(channel) if is_signed else None
    return RevealedChannel(**ChannelOut.of(channel).model_dump(), secret=secret)


@router.get("", response=ChannelsOut, summary="List alert channels")
def alert_channels(request: HttpRequest) -> ChannelsOut:
    """At most 20."""
    found = Channel.objects.filter(team=access_of(request).team).order_by("pk")
    return ChannelsOut(items=[ChannelOut.of(channel) for channel in found])


class EventsIn(Input):
    events: list[Event] = Field(
        min_length=1,
        description="Events that the channel receives.",
        examples=[["alert.fired", "run.failed"]],
    )


class ChannelIn(EventsIn):
    kind: Literal["email", "webhook"] = Field(examples=["webhook"])
    address: str = Field(
        min_length=1,
        max_length=500,
        description="An e-mail address or a webhook URL.",
        examples=["https://hooks.example.org/T0/B1/x4Qz"],
    )


@router.post(
    "", response={201: RevealedChannel}, auth=WRITE, summary="Add an alert channel"
)
def add_alert_channel(
    request: HttpRequest, payload: ChannelIn
) -> Status[RevealedChannel]:
    """An e-mail address, or a webhook. Returns the secret of a webhook."""
    access = access_of(request)
    form = ChannelForm(payload.model_dump(mode="json"))
    refuse_errors(form, place="body")
    with or_conflict():
        channel = add_channel(team=access.team, user=access.user, **form.cleaned_data)
    return Status(201, _reveal(request, channel))


class ChannelChange(Change):
    events: list[Event] | None = Field(
        default=None, min_length=1, examples=[["run.failed"]]
    )
    is_enabled: bool | None = Field(
        default=None,
        description="true also switches on a channel that Cohort switched off.",
    )


@router.patch(
    "/{channel_id}", response=ChannelOut, auth=WRITE, summary="Change an alert channel"
)
def change_alert_channel(
    request: HttpRequest, channel_id: Id, payload: ChannelChange
) -> ChannelOut:
    """The events that the channel receives, and whether it is on."""
    access = access_of(request)
    with transaction.atomic(), or_conflict():
        channel = get_channel(access.team, channel_id, is_held=True)
        sent = payload.over(ChannelOut.of(channel))
        if sent.get("events") is not None:
            choose_events(channel=channel, user=access.user, events=sent["events"])
        if (is_enabled := sent.get("is_enabled")) is not None:
            switch_channel(channel=channel, user=access.user, is_enabled=is_enabled)
    return ChannelOut.of(get_channel(access.team, channel_id))


@router.delete(
    "/{channel_id}", response=Done, auth=WRITE, summary="Delete an alert channel"
)
def delete_alert_channel(request: HttpRequest, channel_id: Id) -> Done:
    """Deletes the channel and its deliveries."""
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    delete_channel(channel=channel, user=access.user)
    return Done(done=True)
