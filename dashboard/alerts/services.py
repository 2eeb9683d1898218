"""Changes of rules, alerts and channels, each with its audit entry."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.accounts.services import describe_change, record
from dashboard.alerts.models import (
    OPEN,
    TEST,
    Alert,
    AlertState,
    Channel,
    Delivery,
    DeliveryState,
    MutedRun,
    Rule,
)
from dashboard.alerts.queries import describe
from dashboard.live.pubsub import notify_on_commit
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.web.edits import find_changes

MAX_RULES = 200
# What a change of makes it another rule, whose open alerts are another's.
CONDITION_FIELDS = {
    "metric",
    "kind",
    "threshold",
    "back",
    "for_steps",
    "run",
    "name_pattern",
}
CHANGED = (*sorted(CONDITION_FIELDS), "name", "is_sent", "pauses_run")
MAX_CHANNELS = 20
MAX_TESTS = 30  # tests and repeats of a team, an hour
TESTS_WINDOW = timedelta(hours=1)


@transaction.atomic
def create_rule(*, rule: Rule, user: User) -> Rule:
    """Save a rule that its form has filled in.

    UserError if the team has too many rules: each is evaluated at every step.
    """
    if Rule.objects.filter(team=rule.team, built_in="").count() >= MAX_RULES:
        raise UserError(
            "alerts.too_many_rules",
            f"A team can have at most {MAX_RULES} custom rules. Delete one first.",
        )
    assert rule.run is None or rule.run.team_id == rule.team_id, "another team's run"
    rule.created_by = user
    rule.save()
    _record(rule, user, "alert_rule.created")
    return rule


@transaction.atomic
def change_rule(*, rule: Rule, user: User) -> bool:
    """Save a rule; a changed condition withdraws its open alerts.

    False if nothing changed. The caller has locked the row since it was read, so that
    no concurrent change is lost.
    """
    assert rule.run is None or rule.run.team_id == rule.team_id, "another team's run"
    before = Rule.objects.get(pk=rule.pk)
    changed = [n for n in CHANGED if getattr(before, n) != getattr(rule, n)]
    if not changed:
        return False
    if not CONDITION_FIELDS.isdisjoint(changed):
        _withdraw(rule)
    rule.revision = before.revision + 1
    rule.save(update_fields=[*changed, "revision"])
    names = {n: "run_id" if n == "run" else n for n in changed}
    old, new = (
        {n: getattr(version, field) for n, field in names.items()}
        for version in (before, rule)
    )
    _record(rule, user, "alert_rule.changed", **describe_change(old, new))
    return True


@transaction.atomic
def switch_rule(*, rule: Rule, user: User, is_enabled: bool) -> bool:
    """False if nothing changed."""
    if not is_enabled:
        _withdraw(rule)
    switched = Rule.objects.filter(pk=rule.pk, is_enabled=not is_enabled).update(
        is_enabled=is_enabled, revision=F("revision") + 1
    )
    if switched:
        record(
            rule.team,
            user,
            "alert_rule.switched_on" if is_enabled else "alert_rule.switched_off",
            rule,
            name=rule.name,
        )
    return bool(switched)


@transaction.atomic
def delete_rule(*, rule: Rule, user: User) -> None:
    """Delete a rule. Its alerts remain, with the text of the rule."""
    if rule.built_in:
        raise UserError(
            "alerts.built_in",
            "You cannot delete a built-in rule. Switch it off instead.",
        )
    _withdraw(rule)
    _record(rule, user, "alert_rule.deleted")
    rule.delete()


def _record(rule: Rule, user: User, verb: str, **more: Any) -> None:
    record(
        rule.team,
        user,
        verb,
        rule,
        name=rule.name,
        reads=describe(rule),
        pauses=rule.pauses_run,
        **more,
    )


def _withdraw(rule: Rule) -> None:
    still = Alert.objects.filter(rule=rule, state__in=OPEN)
    # The run's row first, as in ingest, to avoid deadlocks.
    notify_pages(still.values_list("run_id", flat=True))
    still.update(state=AlertState.WITHDRAWN, ended_at=Now())


def notify_pages(run_ids: Iterable[int]) -> None:
    for run_id in sorted(set(run_ids)):
        Run.objects.filter(id=run_id).update(seq=F("seq") + 1, alerts_seq=F("seq") + 1)
        notify_on_commit(
            run_id, Run.objects.values_list("seq", flat=True).get(id=run_id)
        )


@transaction.atomic
def acknowledge(*, alert: Alert, user: User) -> bool:
    """Mark the alert as handled by a member; False if it is no longer firing."""
    notify_pages([alert.run_id])
    num_acknowledged = Alert.objects.filter(
        pk=alert.pk, state=AlertState.FIRING
    ).update(state=AlertState.ACKNOWLEDGED, acknowledged_at=Now(), acknowledged_by=user)
    if num_acknowledged:
        record(
            alert.run.team,
            user,
            "alert.acknowledged",
            alert,
            run=alert.run_id,
            name=alert.read_as["name"],
        )
    return bool(num_acknowledged)


@transaction.atomic
def mute_rule(*, rule: Rule, user: User, until: datetime | None) -> None:
    """Mute a rule; None unmutes it."""
    Rule.objects.filter(pk=rule.pk).update(muted_until=until)
    verb = "alert_rule.muted" if until else "alert_rule.unmuted"
    text = until.isoformat() if until else None
    record(rule.team, user, verb, rule, name=rule.name, until=text)


@transaction.atomic
def mute_run(*, run: Run, user: User, until: datetime | None) -> None:
    """Mute a run; None unmutes it."""
    if until is None:
        MutedRun.objects.filter(run=run).delete()
    else:
        MutedRun.objects.update_or_create(run=run, defaults={"until": until})
    record(
        run.team,
        user,
        "run.alerts_muted" if until else "run.alerts_unmuted",
        run,
        until=until.isoformat() if until else None,
    )


# Channels.


@transaction.atomic
def add_channel(
    *, team: Team, user: User, kind: str, address: str, events: list[str]
) -> Channel:
    """UserError if the team has too many channels. The audit entry has no path."""
    if Channel.objects.filter(team=team).count() >= MAX_CHANNELS:
        raise UserError(
            "alerts.too_many_channels",
            f"A team can have at most {MAX_CHANNELS} channels. Delete one first.",
        )
    channel = Channel.objects.create(
        team=team, created_by=user, kind=kind, address=address, events=events
    )
    record(
        team,
        user,
        "alert_channel.added",
        channel,
        kind=kind,
        to=shown_address(channel),
        events=events,
    )
    return channel


@transaction.atomic
def choose_events(
    *, channel: Channel, user: User, events: list[str], base: str = ""
) -> None:
    """EditConflict: other events were chosen since `base`."""
    locked = Channel.objects.select_for_update(no_key=True).get(pk=channel.pk)
    if not find_changes({"events": locked.events}, {"events": events}, base):
        return
    Channel.objects.filter(pk=channel.pk).update(events=events)
    verb = "alert_channel.events_chosen"
    record(channel.team, user, verb, channel, events=events, before=locked.events)


@transaction.atomic
def change_secret(*, channel: Channel, user: User) -> None:
    """Replace the secret; the previous one becomes invalid."""
    channel.nonce = uuid.uuid4()
    channel.save(update_fields=["nonce"])
    record(channel.team, user, "alert_channel.secret_changed", channel)


@transaction.atomic
def switch_channel(*, channel: Channel, user: User, is_enabled: bool) -> None:
    Channel.objects.filter(pk=channel.pk).update(
        is_enabled=is_enabled, num_failed=0, gave_up=""
    )
    record(
        channel.team,
        user,
        "alert_channel.switched_on" if is_enabled else "alert_channel.switched_off",
        channel,
    )


@transaction.atomic
def delete_channel(*, channel: Channel, user: User) -> None:
    record(
        channel.team, user, "alert_channel.deleted", channel, to=shown_address(channel)
    )
    channel.delete()


@transaction.atomic
def send_test(*, channel: Channel, user: User) -> Delivery:
    """Sent once: the page shows the result.

    UserError if the team has sent too many tests and repeats.
    """
    _check_tests(channel.team)
    record(channel.team, user, "alert_channel.tested", channel)
    return Delivery.objects.create(channel=channel, event=TEST, not_before=Now())


@transaction.atomic
def resend(*, delivery: Delivery, user: User) -> bool:
    """Send again under the same id with all attempts; False while it is still pending.

    UserError if the channel is off, or the team has sent too many tests and repeats.
    """
    channel = delivery.channel
    if not channel.is_enabled:
        raise UserError(
            "alerts.channel_off",
            "The channel is switched off. Switch it on, then send again.",
        )
    _check_tests(channel.team)
    is_waiting = (
        Delivery.objects.filter(pk=delivery.pk)
        .exclude(state=DeliveryState.PENDING)
        .update(
            state=DeliveryState.PENDING, num_attempts=0, not_before=Now(), sent_at=None
        )
    )
    if is_waiting:
        record(
            channel.team,
            user,
            "alert_channel.sent_again",
            channel,
            delivery=str(delivery.pk),
            event=delivery.event,
        )
    return bool(is_waiting)


def _check_tests(team: Team) -> None:
    recent = AuditEntry.objects.filter(
        team=team,
        verb__in=("alert_channel.tested", "alert_channel.sent_again"),
        created_at__gt=timezone.now() - TESTS_WINDOW,
    )
    if recent.count() >= MAX_TESTS:
        raise UserError(
            "alerts.too_many_tests",
            f"A team can send at most {MAX_TESTS} tests and resends an hour. Try "
            "again later.",
        )


def shown_address(channel: Channel) -> str:
    """Return the address, of a webhook only the host: the path may be a secret of the
    receiver.
    """
    if channel.kind == Channel.Kind.EMAIL:
        return channel.address
    parts = urlsplit(channel.address)
    return f"{parts.scheme}://{parts.netloc}/…"
