"""What a run is evaluated on, and what came of it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.models.run import Run


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
