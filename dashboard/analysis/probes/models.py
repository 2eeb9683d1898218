"""Probes of models and the completions that they sampled."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.jobs.models import JobTarget
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Checkpoint


class Probe(JobTarget):
    """Completions sampled from a starting model, and what they predict for a run.

    Or a checkpoint test: one prompt, sampled from a checkpoint and its base model.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="probes")
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
    # Only to have completions for the reward editor: no step is timed.
    is_sample = models.BooleanField(default=False)
    # Of a try. `prompt` is empty where it is a row's; no rule scores unless is_scored.
    checkpoint = models.ForeignKey(
        Checkpoint, models.CASCADE, null=True, blank=True, related_name="tries"
    )
    prompt = models.TextField(blank=True, default="", db_default="")
    is_scored = models.BooleanField(default=True, db_default=True)

    metrics = models.JSONField[dict[str, Any]](default=dict)  # trainer.commands.probe

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(checkpoint__isnull=False)
                | Q(prompt="", is_scored=True, positions__len__gt=0),
                name="probe_without_checkpoint_scores_rows",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
        ]

    def __str__(self) -> str:
        return f"Probe {self.pk}"

    @property
    def num_prompts(self) -> int:
        return 1 if self.prompt else len(self.positions)


class ProbeGroup(models.Model):
    """The completions of one prompt."""

    probe = models.ForeignKey(Probe, models.CASCADE, related_name="groups")
    position = models.PositiveIntegerField()  # 0: also of a typed prompt
    # Of a try, the base model's.
    is_base = models.BooleanField(default=False, db_default=False)
    # {"text", "num_tokens", "end_reason", "reward", "rules", "errors"}; of an episode
    # also its "turns", as TurnRecord
    completions = models.JSONField[list[dict[str, Any]]]()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["probe", "position", "is_base"], name="probe_group_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.probe_id} row {self.position}"
