"""Checkpoints of a run, and models published from them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Named, Team
from dashboard.runs.models.run import Run, WithAttempt


class Checkpoint(Named, WithAttempt):
    run = models.ForeignKey(Run, models.CASCADE, related_name="checkpoints")
    name = models.CharField(max_length=120)  # folder in the run's checkpoints
    sha256 = models.CharField(max_length=64)
    num_bytes = models.BigIntegerField()
    saved_at = models.DateTimeField()
    pinned_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)  # by hand

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "name"], name="checkpoint_name_free"
            ),
            models.CheckConstraint(
                condition=Q(pinned_at__isnull=True) | Q(deleted_at__isnull=True),
                name="checkpoint_pinned_is_not_deleted",
            ),
        ]


class PublishedModel(Named):
    """A checkpoint's model that new runs of the team can start from.

    It has its own files, in COHORT_DATA/models/<team>/<id>, so it outlives the run.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="published_models")
    name = models.CharField(max_length=80)
    run = models.ForeignKey(
        Run, models.SET_NULL, null=True, blank=True, related_name="published_models"
    )
    run_name = models.CharField(max_length=80)  # also of a run that was deleted
    step = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)  # of the checkpoint's manifest
    num_bytes = models.BigIntegerField()
    published_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    published_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "name"], name="published_model_name_free"
            ),
        ]

    @property
    def folder(self) -> Path:
        return Path(settings.COHORT_DATA) / "models" / str(self.team_id) / str(self.pk)

    @property
    def lineage(self) -> str:
        return f"{self.run_name}, step {self.step}"
