"""Sending what waits. The rows are the truth: whatever dies, it is sent later.

An attempt takes a row for LEASE; one that is never heard of again leaves it to the
next. So a message comes at least once, each time under the same id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import connection
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import Now, RowNumber

from dashboard.alerts.giving_up import note_outcome
from dashboard.alerts.message import describe_delivery, write_mail
from dashboard.alerts.models import Channel, Delivery, DeliveryState
from dashboard.alerts.webhook import NotSent, post
from dashboard.project.mail import why_not_mailed

logger = logging.getLogger(__name__)
ADVISORY_LOCK = 0x416C6572  # any number of our own, the same in every process
LEASE = timedelta(seconds=90)  # well above what an attempt may take
AT_ONCE = 8
PER_CALL = 24
# After the first attempt; a day and a half in all.
PAUSES = [timedelta(seconds=s) for s in (15, 60, 300, 1_800, 7_200, 28_800, 86_400)]
MAX_ATTEMPTS = len(PAUSES) + 1
KEPT = timedelta(days=90)


@dataclass(frozen=True)
class Letter:
    """A delivery made ready, so that a thread sends it without the database."""

    delivery: Delivery
    channel: Channel
    message: dict[str, Any]
    mail: tuple[str, str]


def deliver_due() -> int:
    """Send what is due; how many attempts were made."""
    letters = [letter for pk in _due_in_turn() if (letter := _take(pk)) is not None]
    if not letters:
        return 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for letter, (is_sent, said) in zip(
            letters, pool.map(_send, letters), strict=True
        ):
            _note(letter.delivery, is_sent=is_sent, said=said)
    return len(letters)


def _due_in_turn() -> list[Any]:
    """Each team's first, then each one's second: no team waits behind all of another's,
    whose receivers may take their time."""
    due = Delivery.objects.filter(state=DeliveryState.PENDING, not_before__lte=Now())
    turn = Window(
        RowNumber(), partition_by=F("channel__team"), order_by=F("not_before").asc()
    )
    ranked = due.annotate(turn=turn).order_by("turn", "not_before")
    return list(ranked.values_list("pk", flat=True)[:PER_CALL])


@contextmanager
def alone() -> Iterator[bool]:
    """Whether nobody else delivers: receivers that are slow keep one slot of a worker
    from other work, not all. A lost connection unlocks it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [ADVISORY_LOCK])
        (is_alone,) = cursor.fetchone()
        try:
            yield is_alone
        finally:
            if is_alone:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [ADVISORY_LOCK])


def _take(pk: Any) -> Letter | None:
    """None: another worker got there first, or its channel was switched off."""
    waiting = Q(state=DeliveryState.PENDING, not_before__lte=Now())
    taken = Delivery.objects.filter(waiting, pk=pk).update(
        not_before=Now() + LEASE, num_attempts=F("num_attempts") + 1
    )
    if not taken:
        return None
    beside = ("channel__team", "alert__run__team", "run")
    delivery = Delivery.objects.select_related(*beside).get(pk=pk)
    if not delivery.channel.is_enabled:
        _end(delivery, DeliveryState.FAILED, "Its channel was switched off.")
        return None
    return Letter(
        delivery=delivery,
        channel=delivery.channel,
        message=describe_delivery(delivery),
        mail=write_mail(delivery),
    )


def _send(letter: Letter) -> tuple[bool, str]:
    try:
        if letter.channel.kind == Channel.Kind.EMAIL:
            return True, _send_mail(letter)
        return True, post(letter.channel, str(letter.delivery.pk), letter.message)
    except NotSent as error:
        return False, str(error)
    except Exception:  # other teams' letters of this call go out all the same
        logger.exception("Delivery %s could not be made.", letter.delivery.pk)
        return False, "Cohort failed to make it: see the default worker's log."


def _send_mail(letter: Letter) -> str:
    if not settings.MAIL_IS_SET_UP:
        raise NotSent(
            "Mail is not set up on this server: an administrator sets COHORT_EMAIL_URL."
        )
    subject, text = letter.mail
    headers = {"Message-ID": f"<{letter.delivery.pk}@cohort>"}
    mail = EmailMessage(subject, text, to=[letter.channel.address], headers=headers)
    try:
        mail.send()
    except (SMTPException, OSError) as error:
        raise NotSent(why_not_mailed(error)) from None
    return "taken by the mail server"


def _note(delivery: Delivery, *, is_sent: bool, said: str) -> None:
    if is_sent:
        if _end(delivery, DeliveryState.SENT, said, sent_at=Now()):
            note_outcome(delivery, is_sent=True)
    elif delivery.num_attempts >= MAX_ATTEMPTS or delivery.is_test:
        if _end(delivery, DeliveryState.FAILED, said):
            note_outcome(delivery, is_sent=False)
    else:
        pause = PAUSES[delivery.num_attempts - 1]
        _mine(delivery).update(not_before=Now() + pause, said=said[:300])


def _end(delivery: Delivery, state: DeliveryState, said: str, **fields: Any) -> bool:
    return bool(_mine(delivery).update(state=state, said=said[:300], **fields))


def _mine(delivery: Delivery) -> QuerySet[Delivery]:
    """The row, unless another attempt has begun since."""
    return Delivery.objects.filter(
        pk=delivery.pk,
        state=DeliveryState.PENDING,
        num_attempts=delivery.num_attempts,
    )


def forget_old() -> None:
    Delivery.objects.filter(created_at__lt=Now() - KEPT).exclude(
        state=DeliveryState.PENDING
    ).delete()
