"""A channel that takes nothing any more is switched off, and the team is told."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from dashboard.accounts.services import record
from dashboard.alerts.channels import shown_address
from dashboard.alerts.models import CHANNEL_OFF, Channel, Delivery
from dashboard.alerts.outbox import hold_channels, put_to

MAX_FAILED = 5  # messages in a row, each tried for a day and a half


def note_outcome(delivery: Delivery, *, is_sent: bool) -> None:
    """Of a message that was sent, or given up. A test counts neither way."""
    if delivery.is_test:
        return
    same = Channel.objects.filter(pk=delivery.channel_id)
    if is_sent:
        same.filter(num_failed__gt=0).update(num_failed=0)
    elif same.update(num_failed=F("num_failed") + 1):
        _give_up_where_due(delivery.channel)


@transaction.atomic
def _give_up_where_due(channel: Channel) -> None:
    held = list(hold_channels(channel.team_id))
    mine = next((one for one in held if one.pk == channel.pk), None)
    if mine is None or not mine.is_enabled or mine.num_failed < MAX_FAILED:
        return
    why = f"{mine.num_failed} messages in a row could not be delivered."
    Channel.objects.filter(pk=mine.pk).update(is_enabled=False, gave_up=why)
    to = shown_address(mine)
    record(mine.team, None, "alert_channel.switched_off", mine, to=to, why=why)
    others = Channel.objects.filter(team=mine.team_id, is_enabled=True).order_by("pk")
    put_to(others, CHANNEL_OFF, told={"to": to, "why": why})
