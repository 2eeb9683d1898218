"""A rescoring of a run, and its steps as packed records."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from dashboard.accounts.models import Team
from dashboard.jobs.models import JobTarget
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run


class Rescoring(JobTarget):
    """Scores stored completions of a run with another recipe; the run does not
    change."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="rescorings")
    run = models.ForeignKey(Run, models.CASCADE, related_name="rescorings")
    # Null: what was scored with had not been saved.
    recipe_version = models.ForeignKey(
        RecipeVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # A trainer.rewards.spec.Recipe; null: each step's own.
    spec = models.JSONField[dict[str, Any] | None](null=True, blank=True)
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()
    every = models.PositiveIntegerField()
    steps = ArrayField(models.PositiveIntegerField())  # those that are scored
    num_steps_found = models.PositiveIntegerField()  # stored, from first to last
    num_completions = models.PositiveIntegerField()  # that are scored
    num_found = models.PositiveIntegerField()  # stored, from first to last

    result = models.JSONField[dict[str, Any]](default=dict)  # as results.py makes it

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
        ]

    def __str__(self) -> str:
        return f"Rescoring {self.pk}"


class RescoredStep(models.Model):
    """A step's result: packed records, laid out in credit.py."""

    rescoring = models.ForeignKey(
        Rescoring, models.CASCADE, related_name="scored", db_index=False
    )
    step = models.PositiveIntegerField()
    num_completions = models.PositiveIntegerField()
    groups = models.BinaryField()
    completions = models.BinaryField()
    # Of the new recipe, and the penalty for length where there is one.
    rule_names = ArrayField(models.CharField(max_length=40), default=list)
    scores = models.BinaryField()  # [completions, rules]; NaN: no score
    old_scores = models.BinaryField()  # the same; NaN also where the rule is new
    num_failures = models.PositiveIntegerField(default=0)  # scores
    # The first of them: {"prompt", "position", "rule", "error"}.
    failures = models.JSONField[list[dict[str, Any]]](default=list)
    # Why there are no new advantages.
    problem = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["rescoring", "step"], name="rescored_step_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rescoring_id} step {self.step}"
