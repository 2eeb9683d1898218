from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Checkpoint


class ProbeState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


HELD = (ProbeState.RUNNING, ProbeState.STOPPING)
OPEN = (ProbeState.QUEUED, *HELD)


class Probe(models.Model):
    """Completions sampled from a starting model, with what they tell about a run.

    The row is the truth of its job: a worker claims it with one UPDATE, and writes only
    while the row names it.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="probes")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    dataset_version = models.ForeignKey(
        DatasetVersion, models.PROTECT, related_name="probes"
    )
    # Null: the recipe had not been saved. It is in the config in either case.
    recipe_version = models.ForeignKey(
        RecipeVersion, models.SET_NULL, null=True, blank=True, related_name="probes"
    )
    model_label = models.CharField(max_length=200)
    config = models.JSONField[dict[str, Any]]()  # a RunConfig
    positions = ArrayField(models.PositiveIntegerField())  # of the rows, in order
    num_samples = models.PositiveSmallIntegerField()
    # Only to have completions for the workbench: no step is timed.
    is_sample = models.BooleanField(default=False)

    state = models.CharField(
        max_length=10, choices=ProbeState, default=ProbeState.QUEUED
    )
    worker = models.CharField(max_length=120, blank=True)
    claim = models.UUIDField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    phase = models.CharField(max_length=20, blank=True)
    num_done = models.PositiveIntegerField(default=0)  # prompts sampled
    metrics = models.JSONField[dict[str, Any]](default=dict)  # commands.probing's
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=~Q(state__in=[s.value for s in HELD])
                | Q(lease_until__isnull=False, claim__isnull=False),
                name="probe_held_has_lease",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
            # The beat looks only at these.
            models.Index(
                fields=["state", "lease_until"],
                condition=Q(state__in=[s.value for s in OPEN]),
                name="probe_open",
            ),
        ]

    def __str__(self) -> str:
        return f"Probe {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def num_prompts(self) -> int:
        return len(self.positions)


class ProbeGroup(models.Model):
    """The completions of one row."""

    probe = models.ForeignKey(Probe, models.CASCADE, related_name="groups")
    position = models.PositiveIntegerField()
    # {"text", "num_tokens", "end_reason", "reward", "rules", "errors"}
    completions = models.JSONField[list[dict[str, Any]]]()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["probe", "position"], name="probe_group_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.probe_id} row {self.position}"


class Chat(models.Model):
    """One prompt answered by a run's checkpoint and by the model it began with.

    The row is the truth of its job, as a probe's is. A worker sees to it beside what it
    trains (probes.chat.desk).
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="chats")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    checkpoint = models.ForeignKey(Checkpoint, models.CASCADE, related_name="chats")
    # Null: the prompt was typed.
    position = models.PositiveIntegerField(null=True, blank=True)
    question = models.JSONField[dict[str, Any]]()  # as trainer.commands.chat reads it
    previous = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="following"
    )

    state = models.CharField(
        max_length=10, choices=ProbeState, default=ProbeState.QUEUED
    )
    worker = models.CharField(max_length=120, blank=True)
    claim = models.UUIDField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    notice = models.TextField(blank=True)  # why a worker leaves it to another
    # Of the checkpoint and of its base: {"problem", "completions": [{"text",
    # "num_tokens", "end_reason", "reward", "rules", "errors"} or null, …]}.
    # `end_reason` null: it is being written, or was when it was stopped.
    answers = models.JSONField[list[dict[str, Any]]](default=list)
    error = models.TextField(blank=True)
    seq = models.BigIntegerField(default=1, db_default=1)  # of its last change
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=~Q(state__in=[s.value for s in HELD])
                | Q(lease_until__isnull=False, claim__isnull=False),
                name="chat_held_has_lease",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # Workers look at these twice a second.
            models.Index(
                fields=["state", "id"],
                condition=Q(state__in=[s.value for s in OPEN]),
                name="chat_open",
            ),
        ]

    def __str__(self) -> str:
        return f"Chat {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN
