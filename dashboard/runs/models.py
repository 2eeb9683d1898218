from __future__ import annotations

from typing import Any, ClassVar, Literal

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion


class RunState(models.TextChoices):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


REWARD = "reward/mean"  # what a run is judged by at a glance
ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
HELD = (RunState.STARTING, RunState.RUNNING, RunState.PAUSING, RunState.STOPPING)


class Run(models.Model):
    """One GRPO run: the truth about it. The broker only carries doorbells."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=80)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    notes = models.TextField(blank=True)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)

    # What was asked for, frozen at launch but for what error_shares.py changes.
    config = models.JSONField[dict[str, Any]]()  # trainer.config.RunConfig
    model_label = models.CharField(max_length=200)
    dataset_version = models.ForeignKey(
        DatasetVersion, models.PROTECT, related_name="runs"
    )
    recipe_version = models.ForeignKey(
        RecipeVersion, models.PROTECT, related_name="runs"
    )
    cloned_from = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="clones"
    )
    num_steps = models.PositiveIntegerField()

    # Who holds it. `epoch` is the fencing token: it rises with every claim.
    epoch = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    attempt = models.PositiveSmallIntegerField(default=0)  # lives lost so far
    not_before = models.DateTimeField(null=True, blank=True)  # back-off
    fail_reason = models.TextField(blank=True)
    pause_reason = models.TextField(blank=True, db_default="")  # why it is paused

    # How far it is.
    seq = models.BigIntegerField(default=0)  # last stream number given out
    last_step = models.PositiveIntegerField(default=0)
    # Names of `Step.values`, in order; only ever appended to.
    metric_names = ArrayField(models.CharField(max_length=120), default=list)
    summary = models.JSONField[dict[str, Any]](default=dict)  # {"last": {}, "best": {}}

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True)
                | Q(finished_at__gte=F("created_at")),
                name="run_finished_after_created",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[s.value for s in HELD])
                | Q(lease_until__isnull=False),
                name="run_held_has_lease",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
            # The dispatcher and the reaper look only at these.
            models.Index(
                fields=["state", "lease_until"],
                condition=~Q(state__in=[s.value for s in ENDED]),
                name="run_alive",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def reward(self, which: Literal["last", "best"]) -> float | None:
        value: float | None = self.summary.get(which, {}).get(REWARD)
        return value


class EvaluationSet(models.Model):
    """A dataset version that a run is evaluated on, under a name of the run's own."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="evaluation_sets")
    name = models.CharField(max_length=40)  # of its charts: eval/<name>/mean
    dataset_version = models.ForeignKey(
        DatasetVersion, models.PROTECT, related_name="evaluation_sets"
    )
    max_rows = models.PositiveIntegerField(null=True, blank=True)  # null: all

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "name"], name="evaluation_set_name_free"
            ),
            models.CheckConstraint(
                condition=Q(max_rows__isnull=True) | Q(max_rows__gt=0),
                name="evaluation_set_has_rows",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.dataset_version}"

    @property
    def num_rows(self) -> int:
        there = self.dataset_version.num_rows
        return there if self.max_rows is None else min(self.max_rows, there)


class Epoch(models.Model):
    """One life of a run's trainer, from claim to end."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="epochs")
    number = models.PositiveIntegerField()
    worker = models.CharField(max_length=120)
    from_step = models.PositiveIntegerField(default=0)  # resumed after this step
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "number"], name="epoch_number_free"),
        ]

    def __str__(self) -> str:
        return f"{self.run} epoch {self.number}"


class RunEvent(models.Model):
    """Every ingested event, with its place in the stream.

    `body` holds small events whole; a StepFinished keeps its metrics in Step and a
    GroupScored its completions in samples, so theirs is empty.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="events")
    seq = models.BigIntegerField()
    epoch = models.PositiveIntegerField()
    line = models.PositiveIntegerField()
    type = models.CharField(max_length=20)
    step = models.PositiveIntegerField()
    time = models.DateTimeField()
    body = models.JSONField[dict[str, Any]](default=dict)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "seq"], name="event_seq_free"),
            models.UniqueConstraint(
                fields=["run", "epoch", "line"], name="event_line_ingested_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.run_id}:{self.epoch}:{self.line}"


class Step(models.Model):
    """The metrics of one step. `values[i]` belongs to `run.metric_names[i]`."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    step = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    seq = models.BigIntegerField()
    time = models.DateTimeField()
    values = ArrayField(models.FloatField(null=True))
    # The epoch whose resume went back before this step; null: current history.
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "step"],
                condition=Q(superseded_by__isnull=True),
                name="step_once_in_current_history",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["run", "seq"])]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step}"


class Evaluation(models.Model):
    """One evaluation of a held-out set."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="evaluations")
    step = models.PositiveIntegerField()
    name = models.CharField(max_length=80)
    epoch = models.PositiveIntegerField()
    seq = models.BigIntegerField()
    time = models.DateTimeField()
    metrics = models.JSONField[dict[str, float | None]]()
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "step", "name"],
                condition=Q(superseded_by__isnull=True),
                name="evaluation_once_in_current_history",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.name} at {self.step}"


class Checkpoint(models.Model):
    run = models.ForeignKey(Run, models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    name = models.CharField(max_length=120)  # folder in the run's checkpoints
    sha256 = models.CharField(max_length=64)
    num_bytes = models.BigIntegerField()
    saved_at = models.DateTimeField()
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "name"], name="checkpoint_name_free"
            ),
        ]

    def __str__(self) -> str:
        return self.name
