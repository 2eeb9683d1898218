"""What a run's attempts reported: events, and metrics of steps."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, OuterRef, Q, Subquery, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Now

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.models.run import Run, WithAttempt


class RunAttempt(models.Model):
    """A process of a run's trainer, from claim to end."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    worker = models.CharField(max_length=120)
    from_step = models.PositiveIntegerField(default=0)  # resumed after this step
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=200, blank=True)

    class Meta:
        db_table = "runs_epoch"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "number"], name="epoch_number_free"),
        ]

    def __str__(self) -> str:
        return f"{self.run} attempt {self.number}"


class RunEvent(models.Model):
    """An ingested event, with its number in the stream.

    `body` has small events in full. It is empty for StepFinished, whose metrics are in
    Step, and for GroupScored, whose completions are in samples.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="events")
    seq = models.BigIntegerField()
    attempt = models.PositiveIntegerField(db_column="epoch")
    line = models.PositiveIntegerField()
    type = models.CharField(max_length=20)
    step = models.PositiveIntegerField()
    time = models.DateTimeField()
    body = models.JSONField[dict[str, Any]](default=dict)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "seq"], name="event_seq_free"),
            models.UniqueConstraint(
                fields=["run", "attempt", "line"], name="event_line_ingested_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.run_id}:{self.attempt}:{self.line}"


class Step(WithAttempt):
    """The metrics of one step. `values[i]` belongs to `run.metric_names[i]`."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    seq = models.BigIntegerField()
    time = models.DateTimeField()
    values = ArrayField(models.FloatField(null=True))

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "step"],
                condition=Q(superseded_by__isnull=True),
                name="step_once_in_current_history",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["run", "seq"]),
            models.Index(
                fields=["run", "superseded_by", "step"],
                condition=Q(superseded_by__isnull=False),
                name="step_superseded",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step}"


class Rollup(models.Model):
    """Extremes of one range of steps in the current history, built by rollups.py."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="rollups")
    bucket = models.PositiveIntegerField()  # of the steps that WIDTH divides into it
    last_step = models.PositiveIntegerField()
    # In the order of `run.metric_names`, with the first steps they are at.
    lows = ArrayField(models.FloatField(null=True))
    low_steps = ArrayField(models.PositiveIntegerField(null=True))
    highs = ArrayField(models.FloatField(null=True))
    high_steps = ArrayField(models.PositiveIntegerField(null=True))

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "bucket"], name="rollup_bucket_free"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} bucket {self.bucket}"


# Evaluation sets and results.


class EvaluationSet(models.Model):
    """A dataset version that a run is evaluated on, under a name in the run."""

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


class Evaluation(WithAttempt):
    """An evaluation of a held-out set."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="evaluations")
    name = models.CharField(max_length=80)
    seq = models.BigIntegerField()
    time = models.DateTimeField()
    metrics = models.JSONField[dict[str, float | None]]()

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


def trained_seconds() -> Combinable:
    """Sum the time of a run's attempts; while paused or queued it does not train."""
    span = models.ExpressionWrapper(
        Coalesce("ended_at", Now()) - F("claimed_at"),
        output_field=models.DurationField(),
    )
    attempts = RunAttempt.objects.filter(run=OuterRef("pk")).order_by().values("run")
    return Func(
        Subquery(attempts.values(trained=Sum(span))),
        template="extract(epoch FROM %(expressions)s)",
        output_field=models.FloatField(),
    )
