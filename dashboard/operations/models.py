"""Quotas of teams, what they use, and their retention."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion

KEPT_DAYS = 30  # in the trash, by default; never longer
MOST_COMPLETION_DAYS = 3_650


class Quota(models.Model):
    """The limits that an operator of the server sets for a team; null: none."""

    team = models.OneToOneField(Team, models.CASCADE, related_name="quota")
    max_bytes = models.BigIntegerField(null=True, blank=True)
    max_runs = models.PositiveIntegerField(null=True, blank=True)  # that have not ended

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(max_bytes=None) | Q(max_bytes__gte=0),
                name="quota_bytes_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"quota of {self.team}"


class Use(models.Model):
    """The storage of a team when it was last measured."""

    team = models.OneToOneField(Team, models.CASCADE, related_name="use")
    # {"runs": …, "models": …, "datasets": …, "completions": …}, in bytes
    parts = models.JSONField[dict[str, int], dict[str, int]](default=dict)
    measured_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"use of {self.team}"


class VersionSize(models.Model):
    """The bytes of a version's rows: counted once, as they never change."""

    version = models.OneToOneField(
        DatasetVersion, models.CASCADE, primary_key=True, related_name="size"
    )
    num_bytes = models.BigIntegerField()

    def __str__(self) -> str:
        return f"size of {self.version}"


class Retention(models.Model):
    """The time for which a team's trash keeps what is in it."""

    team = models.OneToOneField(Team, models.CASCADE, related_name="retention")
    trash_days = models.PositiveSmallIntegerField(default=KEPT_DAYS)
    # From the end of their run; null: for good.
    completion_days = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(trash_days__gte=1, trash_days__lte=KEPT_DAYS),
                name="retention_trash_days_in_range",
            ),
            models.CheckConstraint(
                condition=Q(completion_days=None)
                | Q(completion_days__gte=1, completion_days__lte=MOST_COMPLETION_DAYS),
                name="retention_completion_days_in_range",
            ),
        ]

    def __str__(self) -> str:
        return f"retention of {self.team}"
