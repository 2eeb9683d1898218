"""Analyses of versions, and their results."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from dashboard.datasets.models.versions import DatasetVersion


class Analysis(models.Model):
    """A result that a job computes from the rows of versions."""

    JOB: ClassVar[str]  # the kind of its jobs

    num_wanted = models.PositiveIntegerField()
    num_looked = models.PositiveIntegerField(default=0)
    # None until it is computed.
    result = models.JSONField[dict[str, Any]](null=True)
    problem = models.TextField(blank=True)  # why it failed
    waiting_text = ""  # why its job waits

    class Meta:
        abstract = True

    @property
    def is_done(self) -> bool:
        return self.result is not None


class VersionStatistics(Analysis):
    JOB = "dataset.statistics"

    version = models.OneToOneField(
        DatasetVersion, models.CASCADE, related_name="statistics"
    )

    def __str__(self) -> str:
        return f"statistics of {self.version}"


class TokenLengths(Analysis):
    """Prompt lengths in tokens of a model."""

    JOB = "dataset.token_lengths"

    version = models.ForeignKey(
        DatasetVersion, models.CASCADE, related_name="token_lengths"
    )
    model = models.CharField(max_length=500)  # a folder or a hub id

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["version", "model"], name="token_lengths_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"tokens of {self.version} by {self.model}"


class VersionDifference(Analysis):
    """The rows that differ between two versions."""

    JOB = "dataset.difference"

    old = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    new = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    # Positions, four bytes each; of changed rows first the old one, then the new.
    removed = models.BinaryField(default=b"")
    added = models.BinaryField(default=b"")
    changed = models.BinaryField(default=b"")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["old", "new"], name="version_difference_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.old} and {self.new}"


class VersionLeak(Analysis):
    """The rows of a held-out version that are also in a training version."""

    JOB = "dataset.leak"

    held_out = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    trained_on = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="+")
    # Pairs of positions, four bytes each: of the held-out row, of the other.
    exact = models.BinaryField(default=b"")
    words = models.BinaryField(default=b"")
    near = models.BinaryField(default=b"")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["held_out", "trained_on"], name="version_leak_found_once"
            ),
        ]

    def __str__(self) -> str:
        return f"leaks of {self.held_out} into {self.trained_on}"


class VersionSplit(Analysis):
    """A version's rows, split into two new datasets: all of them, or none yet."""

    JOB = "dataset.split"

    version = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="splits")
    # {"by": "share", "share": 10.0, "seed": 0} or {"by": "column", "column": …,
    # "value": …}: what goes to the eval split.
    rule = models.JSONField[dict[str, Any]]()
    train_name = models.CharField(max_length=80)
    eval_name = models.CharField(max_length=80)
    train = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    eval = models.ForeignKey(
        DatasetVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.version} by {self.how}"

    @property
    def how(self) -> str:
        """The rule in words."""
        rule = self.rule
        if rule["by"] == "share":
            return f"{rule['share']:g} %, seed {rule['seed']}"
        return f"{rule['column']} = {rule['value']}"
