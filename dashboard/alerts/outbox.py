"""What is to be sent, put down in the transaction of what it tells."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.alerts.models import Channel, Delivery, DeliveryState, Event

MAX_AN_HOUR = 60  # messages to one channel


def put_out(team_id: int, event: Event, **about: Any) -> None:
    """To every channel of the team that wants to be told of it."""
    wanting = hold_channels(team_id).filter(is_enabled=True, events__contains=[event])
    put_to(wanting, event.value, **about)


def hold_channels(team_id: int) -> QuerySet[Channel]:
    """All in one order, so that nobody waits for who waits for them."""
    channels = Channel.objects.select_for_update(no_key=True)
    return channels.filter(team_id=team_id).order_by("pk")


def put_to(channels: QuerySet[Channel], event: str, **about: Any) -> None:
    Delivery.objects.bulk_create(
        Delivery(
            channel=channel,
            event=event,
            not_before=Now(),
            **about,
            **_too_many(channel),
        )
        for channel in channels
    )


def _too_many(channel: Channel) -> dict[str, Any]:
    """A rule that fires at every other step fills nobody's mailbox; one query."""
    hour_ago = timezone.now() - timedelta(hours=1)
    sent = channel.deliveries.filter(created_at__gt=hour_ago)
    if sent.exclude(state=DeliveryState.FAILED)[:MAX_AN_HOUR].count() < MAX_AN_HOUR:
        return {}
    said = f"Not sent: it had {MAX_AN_HOUR} messages within an hour. See the alerts."
    return {"state": DeliveryState.FAILED, "said": said}
