"""Rules, the alerts that they raise, and the channels that receive them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from dashboard.accounts.models import Named, Team
from dashboard.runs.models import ENDED, Run
from trainer.alerts.conditions import MAX_STEPS, Condition, Kind
from trainer.alerts.rules import RULES, AlertRule

WARNINGS = AlertRule(
    code="trainer",
    name="Trainer warnings",
    why="The trainer reported a problem, such as a damaged checkpoint or too little "
    "memory, and what to do about it.",
    metric="",
    condition=Condition(kind=Kind.WARNED),
)
BUILT_IN = {rule.code: rule for rule in (*RULES, WARNINGS)}
OWN_KINDS = (Kind.ABOVE, Kind.BELOW, Kind.CHANGES, Kind.MISSING)
TEST = "test"  # requested by a member, sent once
CHANNEL_OFF = "channel.off"  # another channel of the team was given up


class Rule(Named):
    """A condition that raises alerts. A built-in rule gets a row when it is first
    listed.

    A null threshold or number of steps is the built-in rule's default.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="alert_rules")
    built_in = models.CharField(max_length=20, blank=True)  # its key; "": an own rule
    name = models.CharField(max_length=80)
    metric = models.CharField(max_length=120, blank=True)
    kind = models.CharField(max_length=20, choices=[(k.value, k.value) for k in Kind])
    threshold = models.FloatField(null=True, blank=True)
    back = models.PositiveIntegerField(default=1)
    for_steps = models.PositiveIntegerField(null=True, blank=True)

    # Which runs: all of the team, one, or those of a name such as sft-*.
    run = models.ForeignKey(
        Run, models.CASCADE, null=True, blank=True, related_name="alert_rules"
    )
    name_pattern = models.CharField(max_length=80, blank=True)

    is_enabled = models.BooleanField(default=True)
    is_sent = models.BooleanField(default=True)
    pauses_run = models.BooleanField(default=False)
    muted_until = models.DateTimeField(null=True, blank=True)
    revision = models.PositiveIntegerField(default=1)  # rises with each change
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "built_in"],
                condition=~Q(built_in=""),
                name="built_in_rule_once_a_team",
            ),
            models.CheckConstraint(
                condition=Q(for_steps__isnull=True)
                | Q(for_steps__gte=1, for_steps__lte=MAX_STEPS),
                name="rule_for_steps_in_bounds",
            ),
            models.CheckConstraint(
                condition=Q(back__gte=1, back__lte=MAX_STEPS),
                name="rule_back_in_bounds",
            ),
        ]

    @property
    def default(self) -> AlertRule | None:
        return BUILT_IN.get(self.built_in)

    @property
    def why(self) -> str:
        return self.default.why if self.default else ""

    @property
    def condition(self) -> Condition:
        own = Condition(kind=Kind(self.kind), lookback=self.back)
        start = self.default.condition if self.default else own
        return replace(
            start,
            threshold=start.threshold if self.threshold is None else self.threshold,
            for_steps=self.for_steps or start.for_steps,
        )

    @property
    def alert_rule(self) -> AlertRule:
        """With the team's own numbers."""
        return AlertRule(
            code=self.built_in,
            name=self.name,
            why=self.why,
            metric=self.metric,
            condition=self.condition,
        )

    @property
    def is_muted(self) -> bool:
        return self.muted_until is not None and self.muted_until > timezone.now()

    def applies_to(self, run: Run) -> bool:
        if self.run_id is not None:
            return self.run_id == run.id
        return not self.name_pattern or fnmatchcase(run.name, self.name_pattern)


class AlertState(models.TextChoices):
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"  # the condition no longer holds
    SUPERSEDED = "superseded"  # a resume went back before its step
    WITHDRAWN = "withdrawn"  # its rule was changed, switched off or deleted


OPEN = (AlertState.FIRING, AlertState.ACKNOWLEDGED)


class AlertQuerySet(models.QuerySet["Alert"]):
    def open(self) -> Self:
        return self.filter(state__in=OPEN)

    def actionable(self) -> Self:
        """Open alerts of runs that have not ended."""
        return self.open().exclude(run__state__in=ENDED)


class Alert(models.Model):
    """An alert of a rule in a run, with its evidence."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="alerts")
    rule = models.ForeignKey(
        Rule, models.SET_NULL, null=True, blank=True, related_name="alerts"
    )
    # Which of several findings of one rule: a warning's code, an evaluated metric.
    code = models.CharField(max_length=120, blank=True)
    metric = models.CharField(max_length=120, blank=True)
    step = models.PositiveIntegerField()
    value = models.FloatField(null=True)
    bound = models.FloatField(null=True)  # what the value was compared with
    # The rule when it fired: {"name", "text", "why", …}
    read_as = models.JSONField[dict[str, Any]](default=dict)

    state = models.CharField(
        max_length=12, choices=AlertState, default=AlertState.FIRING
    )
    is_muted = models.BooleanField(default=False)
    has_paused = models.BooleanField(default=False)  # the rule requested a pause

    # ±5 readings: {metric: [[step, value], …]}; the later ones come as they are made.
    readings = models.JSONField[dict[str, list[list[Any]]]](default=dict)
    groups = models.JSONField[list[list[int]]](default=list)  # [[step, prompt], …]

    fired_at = models.DateTimeField(auto_now_add=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_step = models.PositiveIntegerField(null=True, blank=True)

    objects = AlertQuerySet.as_manager()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "rule", "code"],
                condition=Q(state__in=[s.value for s in OPEN]),
                name="alert_open_once",
            ),
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in OPEN])
                | Q(ended_at__isnull=False),
                name="alert_closed_has_end",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["run", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.read_as.get('name', 'alert')} at step {self.step} of {self.run}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


class MutedRun(models.Model):
    """Alerts of this run are not sent and do not pause it until then."""

    run = models.OneToOneField(Run, models.CASCADE, related_name="muted")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.run} until {self.until}"


class Event(models.TextChoices):
    """An event that a channel may receive."""

    ALERT_FIRED = "alert.fired", "An alert fires"
    RUN_FINISHED = "run.finished", "A run finishes"
    RUN_FAILED = "run.failed", "A run fails"
    RUN_STOPPED = "run.stopped", "A run stops"
    RUN_PAUSED = "run.paused", "A run pauses"


def alerts_alone() -> list[str]:
    return [Event.ALERT_FIRED.value]


class Channel(models.Model):
    """A receiver of a team's alerts and of other events."""

    class Kind(models.TextChoices):
        EMAIL = "email", "E-mail"
        WEBHOOK = "webhook", "Webhook"

    team = models.ForeignKey(Team, models.CASCADE, related_name="alert_channels")
    kind = models.CharField(max_length=8, choices=Kind)
    # A webhook's path may contain a token, as Slack's does, so it is never shown.
    address = models.CharField(max_length=500)
    # What a webhook's key is made from, with the server's own secret.
    nonce = models.UUIDField(default=uuid.uuid4)
    events = ArrayField(
        models.CharField(max_length=20, choices=Event), default=alerts_alone
    )
    is_enabled = models.BooleanField(default=True)
    # Given up in a row; a test counts neither way.
    num_failed = models.PositiveSmallIntegerField(default=0)
    gave_up = models.CharField(max_length=300, blank=True)  # why it was switched off
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"  # never the address: this may be logged


class DeliveryState(models.TextChoices):
    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class Delivery(models.Model):
    """A message to one channel: sent at least once, under its id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=20)
    alert = models.ForeignKey(
        Alert, models.CASCADE, null=True, blank=True, related_name="deliveries"
    )
    run = models.ForeignKey(
        Run, models.CASCADE, null=True, blank=True, related_name="deliveries"
    )
    # At the time of the event: the run may have changed before this is sent.
    content = models.JSONField[dict[str, Any]](default=dict, db_column="told")
    state = models.CharField(
        max_length=8, choices=DeliveryState, default=DeliveryState.PENDING
    )
    num_attempts = models.PositiveSmallIntegerField(default=0)
    not_before = (
        models.DateTimeField()
    )  # the next attempt, or the end of the lease of the current one
    result = models.CharField(  # of the last attempt
        max_length=300, blank=True, db_column="said"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(event="alert.fired", alert__isnull=False, run=None)
                | Q(event__startswith="run.", run__isnull=False, alert=None)
                | Q(event__in=["test", "channel.off"], alert=None, run=None),
                name="delivery_is_about_its_event",
            ),
            models.UniqueConstraint(
                fields=["channel", "alert"],
                condition=Q(alert__isnull=False),
                name="alert_sent_once_a_channel",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["not_before"],
                condition=Q(state="pending"),
                name="delivery_due",
            ),
            models.Index(fields=["channel", "-created_at"]),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.id}"

    @property
    def is_test(self) -> bool:
        return self.event == TEST
