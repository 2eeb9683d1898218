"""Where a team's alerts go: what people do to that."""

from __future__ import annotations

import uuid
from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.accounts.services import record
from dashboard.alerts.models import TEST, Channel, Delivery, DeliveryState
from dashboard.project.edits import Edit

MAX_CHANNELS = 20
MAX_ASKED = 30  # tests and repeats of a team, an hour
ASKED_WINDOW = timedelta(hours=1)


@transaction.atomic
def add_channel(
    *, team: Team, user: User, kind: str, address: str, events: list[str]
) -> Channel:
    """ValueError when the team has as many as it may. The audit row holds no path."""
    if Channel.objects.filter(team=team).count() >= MAX_CHANNELS:
        raise ValueError(
            f"A team's alerts go to {MAX_CHANNELS} places at most. Delete one first."
        )
    channel = Channel.objects.create(
        team=team, created_by=user, kind=kind, address=address, events=events
    )
    to = shown_address(channel)
    detail = {"kind": kind, "to": to, "events": events}
    record(team, user, "alert_channel.added", channel, **detail)
    return channel


@transaction.atomic
def choose_events(
    *, channel: Channel, user: User, events: list[str], was: list[str] | None = None
) -> None:
    """`was`: the ones that the user saw; what another chose meanwhile stays."""
    held = Channel.objects.select_for_update(no_key=True).get(pk=channel.pk)
    edit = Edit.of("events", events, was)
    chosen = edit.merge({"events": held.events}).get("events", held.events)
    if not chosen:
        raise ValueError(
            "Others took out the events that you left in. Choose at least one, or "
            "switch the channel off."
        )
    Channel.objects.filter(pk=channel.pk).update(events=chosen)
    verb = "alert_channel.events_chosen"
    record(channel.team, user, verb, channel, events=chosen, before=held.events)


@transaction.atomic
def change_secret(*, channel: Channel, user: User) -> None:
    """The old one signs nothing from now on."""
    channel.nonce = uuid.uuid4()
    channel.save(update_fields=["nonce"])
    record(channel.team, user, "alert_channel.secret_changed", channel)


@transaction.atomic
def switch_channel(*, channel: Channel, user: User, is_enabled: bool) -> None:
    Channel.objects.filter(pk=channel.pk).update(
        is_enabled=is_enabled, num_failed=0, gave_up=""
    )
    verb = "alert_channel.switched_on" if is_enabled else "alert_channel.switched_off"
    record(channel.team, user, verb, channel)


@transaction.atomic
def delete_channel(*, channel: Channel, user: User) -> None:
    to = shown_address(channel)
    record(channel.team, user, "alert_channel.deleted", channel, to=to)
    channel.delete()


@transaction.atomic
def send_test(*, channel: Channel, user: User) -> Delivery:
    """Sent once: what is wrong is read off the page, and mended.

    ValueError when the team has sent as many as it may.
    """
    _check_asked(channel.team)
    record(channel.team, user, "alert_channel.tested", channel)
    return Delivery.objects.create(channel=channel, event=TEST, not_before=Now())


@transaction.atomic
def send_again(*, delivery: Delivery, user: User) -> bool:
    """Under the same id, with all attempts anew; False while it is still tried.

    ValueError when its channel is off, or the team has asked for as many as it may.
    """
    channel = delivery.channel
    if not channel.is_enabled:
        raise ValueError("Its channel is switched off. Switch it on, then send again.")
    _check_asked(channel.team)
    ended = Delivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.PENDING)
    is_waiting = ended.update(
        state=DeliveryState.PENDING, num_attempts=0, not_before=Now(), sent_at=None
    )
    if is_waiting:
        detail = {"delivery": str(delivery.pk), "event": delivery.event}
        record(channel.team, user, "alert_channel.sent_again", channel, **detail)
    return bool(is_waiting)


def _check_asked(team: Team) -> None:
    since = timezone.now() - ASKED_WINDOW
    asked = AuditEntry.objects.filter(
        team=team,
        verb__in=("alert_channel.tested", "alert_channel.sent_again"),
        created_at__gt=since,
    )
    if asked.count() >= MAX_ASKED:
        raise ValueError(
            f"A team sends {MAX_ASKED} tests and repeats an hour at most, as their "
            "receiver may not have asked for them. Wait a little."
        )


def shown_address(channel: Channel) -> str:
    """Of a webhook its host alone: its path may be a key to somebody's chat."""
    if channel.kind == Channel.Kind.EMAIL:
        return channel.address
    parts = urlsplit(channel.address)
    return f"{parts.scheme}://{parts.netloc}/…"
