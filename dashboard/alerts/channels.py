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
from dashboard.alerts.models import Channel, Delivery

MAX_CHANNELS = 20
MAX_TESTS = 30  # of a team, an hour
TEST_WINDOW = timedelta(hours=1)


@transaction.atomic
def add_channel(*, team: Team, user: User, kind: str, address: str) -> Channel:
    """ValueError when the team has as many as it may. The audit row holds no path."""
    if Channel.objects.filter(team=team).count() >= MAX_CHANNELS:
        raise ValueError(
            f"A team's alerts go to {MAX_CHANNELS} places at most. Delete one first."
        )
    channel = Channel.objects.create(
        team=team, created_by=user, kind=kind, address=address
    )
    to = shown_address(channel)
    record(team, user, "alert_channel.added", channel, kind=kind, to=to)
    return channel


@transaction.atomic
def change_secret(*, channel: Channel, user: User) -> None:
    """The old one signs nothing from now on."""
    channel.nonce = uuid.uuid4()
    channel.save(update_fields=["nonce"])
    record(channel.team, user, "alert_channel.secret_changed", channel)


@transaction.atomic
def switch_channel(*, channel: Channel, user: User, is_enabled: bool) -> None:
    Channel.objects.filter(pk=channel.pk).update(is_enabled=is_enabled)
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
    since = timezone.now() - TEST_WINDOW
    tested = AuditEntry.objects.filter(
        team=channel.team, verb="alert_channel.tested", created_at__gt=since
    )
    if tested.count() >= MAX_TESTS:
        raise ValueError(
            f"A team sends {MAX_TESTS} tests an hour at most, as their receiver may "
            "not have asked for them. Wait a little."
        )
    record(channel.team, user, "alert_channel.tested", channel)
    return Delivery.objects.create(channel=channel, not_before=Now())


def shown_address(channel: Channel) -> str:
    """Of a webhook its host alone: its path may be a key to somebody's chat."""
    if channel.kind == Channel.Kind.EMAIL:
        return channel.address
    parts = urlsplit(channel.address)
    return f"{parts.scheme}://{parts.netloc}/…"
