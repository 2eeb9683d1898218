"""Where a team's alerts go: e-mail addresses and webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.alerts.channel_forms import ChannelForm, EventsForm
from dashboard.alerts.channels import (
    add_channel,
    change_secret,
    choose_events,
    delete_channel,
    send_test,
    shown_address,
    switch_channel,
)
from dashboard.alerts.models import Channel, Event
from dashboard.alerts.queries import get_channel
from dashboard.alerts.webhook import signing_secret
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import Problem, or_conflict
from dashboard.api.replays import show_once
from dashboard.api.resources.alerts.deliveries import DeliveryOut
from dashboard.api.schemas import Done, Id, Input

router = Router(tags=["Alerts"], auth=READ)


class ChannelOut(Schema):
    id: int = Field(examples=[2])
    kind: str = Field(examples=["webhook"])
    address: str = Field(
        description="Of a webhook its host alone: its path may be a key.",
        examples=["https://hooks.example.org/…"],
    )
    events: list[str] = Field(examples=[["alert.fired", "run.failed"]])
    is_enabled: bool
    gave_up: str = Field(description="Why it was switched off.", examples=[""])
    created_at: datetime

    @classmethod
    def of(cls, channel: Channel) -> ChannelOut:
        return cls(
            id=channel.pk,
            kind=channel.kind,
            address=shown_address(channel),
            events=channel.events,
            is_enabled=channel.is_enabled,
            gave_up=channel.gave_up,
            created_at=channel.created_at,
        )


class ChannelsOut(Schema):
    items: list[ChannelOut]


class RevealedChannel(ChannelOut):
    secret: str | None = Field(
        description="Of a webhook: its messages are signed with it. Shown this once; a "
        "repeat by Idempotency-Key says null.",
        examples=["whsec_…"],
    )


def _reveal(request: HttpRequest, channel: Channel) -> RevealedChannel:
    show_once(request, "secret")
    is_signed = channel.kind == Channel.Kind.WEBHOOK
    secret = signing_secret(channel) if is_signed else None
    return RevealedChannel(**ChannelOut.of(channel).model_dump(), secret=secret)


@router.get("", response=ChannelsOut, summary="List alert channels")
def alert_channels(request: HttpRequest) -> ChannelsOut:
    """Twenty at most."""
    found = Channel.objects.filter(team=access_of(request).team).order_by("pk")
    return ChannelsOut(items=[ChannelOut.of(channel) for channel in found])


@router.get("/{channel_id}", response=ChannelOut, summary="Look at an alert channel")
def alert_channel(request: HttpRequest, channel_id: Id) -> ChannelOut:
    return ChannelOut.of(get_channel(access_of(request).team, channel_id))


class EventsIn(Input):
    events: list[Event] = Field(
        min_length=1,
        description="Of what it is told.",
        examples=[["alert.fired", "run.failed"]],
    )


class ChannelIn(EventsIn):
    kind: Literal["email", "webhook"] = Field(examples=["webhook"])
    address: str = Field(
        min_length=1,
        max_length=500,
        description="An e-mail address, or a webhook's URL.",
        examples=["https://hooks.example.org/T0/B1/x4Qz"],
    )


@router.post(
    "", response={201: RevealedChannel}, auth=WRITE, summary="Add an alert channel"
)
def add_alert_channel(
    request: HttpRequest, payload: ChannelIn
) -> Status[RevealedChannel]:
    """An e-mail address, or a webhook with its secret. Send a test afterwards."""
    access = access_of(request)
    form = ChannelForm(payload.model_dump(mode="json"))
    refuse_errors(form, place="body")
    with or_conflict():
        channel = add_channel(team=access.team, user=access.user, **form.cleaned_data)
    return Status(201, _reveal(request, channel))


@router.post(
    "/{channel_id}/events",
    response=ChannelOut,
    auth=WRITE,
    summary="Choose what a channel is told of",
)
def choose_channel_events(
    request: HttpRequest, channel_id: Id, payload: EventsIn
) -> ChannelOut:
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    form = EventsForm(payload.model_dump(mode="json"))
    refuse_errors(form, place="body")
    choose_events(channel=channel, user=access.user, events=form.cleaned_data["events"])
    return _again(access.team, channel)


class ChannelSwitch(Input):
    is_enabled: bool = Field(examples=[False])


@router.post(
    "/{channel_id}/switch",
    response=ChannelOut,
    auth=WRITE,
    summary="Switch a channel on or off",
)
def switch_alert_channel(
    request: HttpRequest, channel_id: Id, payload: ChannelSwitch
) -> ChannelOut:
    """On: it is tried anew, also where it was given up."""
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    switch_channel(channel=channel, user=access.user, is_enabled=payload.is_enabled)
    return _again(access.team, channel)


def _again(team: Team, channel: Channel) -> ChannelOut:
    return ChannelOut.of(get_channel(team, channel.pk))


@router.post(
    "/{channel_id}/secret",
    response=RevealedChannel,
    auth=WRITE,
    summary="Change a webhook's secret",
)
def change_channel_secret(request: HttpRequest, channel_id: Id) -> RevealedChannel:
    """The old one signs nothing from now on."""
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    if channel.kind != Channel.Kind.WEBHOOK:
        raise Problem(409, "Only a webhook has a secret; this is an e-mail address.")
    change_secret(channel=channel, user=access.user)
    return _reveal(request, channel)


@router.post(
    "/{channel_id}/test",
    response={201: DeliveryOut},
    auth=WRITE,
    summary="Send a test",
)
def test_alert_channel(request: HttpRequest, channel_id: Id) -> Status[DeliveryOut]:
    """Once; look at the delivery for what came of it."""
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    with or_conflict():
        delivery = send_test(channel=channel, user=access.user)
    delivery.refresh_from_db()  # with the times that the database gave it
    return Status(201, DeliveryOut.of(delivery))


@router.delete(
    "/{channel_id}", response=Done, auth=WRITE, summary="Delete an alert channel"
)
def delete_alert_channel(request: HttpRequest, channel_id: Id) -> Done:
    """Nothing is sent there any more, and its deliveries are gone."""
    access = access_of(request)
    channel = get_channel(access.team, channel_id)
    delete_channel(channel=channel, user=access.user)
    return Done(done=True)
