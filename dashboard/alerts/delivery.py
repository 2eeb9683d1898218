"""Messages to channels: added to an outbox with their content, and sent until accepted.

The rows are the source of truth. An attempt leases a row for LEASE; if its process
dies, the next attempt takes over. So each message arrives at least once, always under
the same id.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from smtplib import SMTPException
from typing import Any

from celery import shared_task
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import Now, RowNumber
from django.dispatch import receiver
from django.utils import timezone

from dashboard.accounts.services import record
from dashboard.alerts.messages import (
    NotSent,
    describe_delivery,
    describe_run,
    post,
    write_mail,
)
from dashboard.alerts.models import (
    CHANNEL_OFF,
    Channel,
    Delivery,
    DeliveryState,
    Event,
    MutedRun,
)
from dashboard.alerts.services import shown_address
from dashboard.jobs import shutdown
from dashboard.jobs.kinds import register_purge
from dashboard.project.database import session_lock
from dashboard.project.mail import why_not_mailed
from dashboard.runs.models import Run, RunState
from dashboard.runs.state import run_moved

logger = logging.getLogger(__name__)
MAX_AN_HOUR = 60  # messages to one channel
MAX_FAILED = 5  # messages in a row, each tried for a day and a half
ADVISORY_LOCK = 0x416C6572  # any number of our own, the same in every process
LEASE = timedelta(seconds=90)  # well above what an attempt may take
AT_ONCE = 8
PER_CALL = 24
# After the first attempt; a day and a half in all.
PAUSES = [timedelta(seconds=s) for s in (15, 60, 300, 1_800, 7_200, 28_800, 86_400)]
MAX_ATTEMPTS = len(PAUSES) + 1
KEEP_FOR = timedelta(days=90)
EVENTS = {
    RunState.FINISHED: Event.RUN_FINISHED,
    RunState.FAILED: Event.RUN_FAILED,
    RunState.STOPPED: Event.RUN_STOPPED,
    RunState.PAUSED: Event.RUN_PAUSED,
}


def add_to_outbox(team_id: int, event: Event, **about: Any) -> None:
    """Add a message for each channel of the team that receives it, in the transaction
    of the event.
    """
    add_deliveries(
        lock_channels(team_id).filter(is_enabled=True, events__contains=[event]),
        event.value,
        **about,
    )


def lock_channels(team_id: int) -> QuerySet[Channel]:
    """Locks in one order, which avoids deadlocks."""
    return (
        Channel.objects.select_for_update(no_key=True)
        .filter(team_id=team_id)
        .order_by("pk")
    )


def add_deliveries(channels: QuerySet[Channel], event: str, **about: Any) -> None:
    Delivery.objects.bulk_create(
        Delivery(
            channel=channel,
            event=event,
            not_before=Now(),
            **about,
            **_over_limit(channel),
        )
        for channel in channels
    )


def _over_limit(channel: Channel) -> dict[str, Any]:
    """Fails messages beyond the hourly limit of the channel; one query."""
    sent = channel.deliveries.filter(created_at__gt=timezone.now() - timedelta(hours=1))
    if sent.exclude(state=DeliveryState.FAILED)[:MAX_AN_HOUR].count() < MAX_AN_HOUR:
        return {}
    message = (
        f"Not sent: the channel reached its limit of {MAX_AN_HOUR} messages an hour. "
        "See the alerts page."
    )
    return {"state": DeliveryState.FAILED, "result": message}


def count_failures(delivery: Delivery, *, is_sent: bool) -> None:
    """Counts failed messages in a row. Tests do not count."""
    if delivery.is_test:
        return
    same = Channel.objects.filter(pk=delivery.channel_id)
    if is_sent:
        same.filter(num_failed__gt=0).update(num_failed=0)
    elif same.update(num_failed=F("num_failed") + 1):
        _disable_if_failing(delivery.channel)


@transaction.atomic
def _disable_if_failing(channel: Channel) -> None:
    locked = list(lock_channels(channel.team_id))
    failing = next((row for row in locked if row.pk == channel.pk), None)
    if failing is None or not failing.is_enabled or failing.num_failed < MAX_FAILED:
        return
    why = f"The last {failing.num_failed} messages failed."
    Channel.objects.filter(pk=failing.pk).update(is_enabled=False, gave_up=why)
    to = shown_address(failing)
    record(failing.team, None, "alert_channel.switched_off", failing, to=to, why=why)
    add_deliveries(
        Channel.objects.filter(team=failing.team_id, is_enabled=True).order_by("pk"),
        CHANNEL_OFF,
        content={"to": to, "why": why},
    )


@dataclass(frozen=True)
class OutgoingMessage:
    """A delivery that a thread can send without the database."""

    delivery: Delivery
    channel: Channel
    message: dict[str, Any]
    mail: tuple[str, str]


def deliver_due() -> int:
    """Send due messages; returns the number of attempts."""
    # Each team's first message, then each team's second: a slow receiver of one team
    # delays no other team.
    ranked = (
        Delivery.objects.filter(state=DeliveryState.PENDING, not_before__lte=Now())
        .annotate(
            turn=Window(
                RowNumber(),
                partition_by=F("channel__team"),
                order_by=F("not_before").asc(),
            )
        )
        .order_by("turn", "not_before")
    )
    keys = list(ranked.values_list("pk", flat=True)[:PER_CALL])
    batch = [outgoing for pk in keys if (outgoing := _claim(pk)) is not None]
    if not batch:
        return 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outgoing, (is_sent, result) in zip(
            batch, pool.map(_send, batch), strict=True
        ):
            delivery = outgoing.delivery
            if is_sent:
                if _end(delivery, DeliveryState.SENT, result, sent_at=Now()):
                    count_failures(delivery, is_sent=True)
            elif delivery.num_attempts >= MAX_ATTEMPTS or delivery.is_test:
                if _end(delivery, DeliveryState.FAILED, result):
                    count_failures(delivery, is_sent=False)
            else:
                pause = PAUSES[delivery.num_attempts - 1]
                _same_attempt(delivery).update(
                    not_before=Now() + pause, result=result[:300]
                )
    return len(batch)


def _claim(pk: Any) -> OutgoingMessage | None:
    """Claim it; None if another worker has, or its channel was switched off."""
    is_claimed = Delivery.objects.filter(
        Q(state=DeliveryState.PENDING, not_before__lte=Now()), pk=pk
    ).update(not_before=Now() + LEASE, num_attempts=F("num_attempts") + 1)
    if not is_claimed:
        return None
    related = ("channel__team", "alert__run__team", "run")
    delivery = Delivery.objects.select_related(*related).get(pk=pk)
    if not delivery.channel.is_enabled:
        _end(delivery, DeliveryState.FAILED, "The channel was disabled.")
        return None
    return OutgoingMessage(
        delivery=delivery,
        channel=delivery.channel,
        message=describe_delivery(delivery),
        mail=write_mail(delivery),
    )


def _send(outgoing: OutgoingMessage) -> tuple[bool, str]:
    try:
        if outgoing.channel.kind != Channel.Kind.EMAIL:
            return True, post(
                outgoing.channel, str(outgoing.delivery.pk), outgoing.message
            )
        if not settings.MAIL_IS_SET_UP:
            return False, (
                "This server has no mail server. An administrator must set "
                "COHORT_EMAIL_URL."
            )
        subject, text = outgoing.mail
        headers = {"Message-ID": f"<{outgoing.delivery.pk}@cohort>"}
        to = [outgoing.channel.address]
        try:
            EmailMessage(subject, text, to=to, headers=headers).send()
        except (SMTPException, OSError) as error:
            return False, why_not_mailed(error)
        return True, "accepted by the mail server"
    except NotSent as error:
        return False, str(error)
    except Exception:  # the other messages of this call must still go out
        logger.exception("Failed to send delivery %s.", outgoing.delivery.pk)
        return False, "Sending failed. See the log of the default worker."


def _end(delivery: Delivery, state: DeliveryState, result: str, **fields: Any) -> bool:
    return bool(
        _same_attempt(delivery).update(state=state, result=result[:300], **fields)
    )


def _same_attempt(delivery: Delivery) -> QuerySet[Delivery]:
    """Return the row, unless another attempt has started since."""
    return Delivery.objects.filter(
        pk=delivery.pk,
        state=DeliveryState.PENDING,
        num_attempts=delivery.num_attempts,
    )


def purge_alerts() -> None:
    Delivery.objects.filter(created_at__lt=Now() - KEEP_FOR).exclude(
        state=DeliveryState.PENDING
    ).delete()


@receiver(run_moved)
def add_run_event(run: Run, **_: Any) -> None:
    """Add the event in the transaction of the transition, so that it is sent once and
    only if it happened.
    """
    event = EVENTS.get(RunState(run.state))
    if event is None:
        return
    if not MutedRun.objects.filter(run=run, until__gt=timezone.now()).exists():
        add_to_outbox(run.team_id, event, run=run, content=describe_run(run))


register_purge(purge_alerts)


@shared_task(name="alerts.deliver", ignore_result=True)
def deliver() -> None:
    # Slow receivers occupy one worker slot, not all.
    with session_lock(ADVISORY_LOCK) as has_lock:
        while has_lock and not shutdown.is_announced() and deliver_due():
            pass
