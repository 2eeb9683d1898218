from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


HELD = (State.RUNNING, State.STOPPING)
OPEN = (State.QUEUED, *HELD)


class Rescoring(models.Model):
    """Stored completions of a run scored anew; what is stored of the run stays.

    The row is the truth of its job: a worker claims it with one UPDATE, and writes only
    while the row names its claim.
    """

    team = models.ForeignKey(Team, models.CASCADE, related_name="rescorings")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
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

    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    worker = models.CharField(max_length=120, blank=True)
    claim = models.UUIDField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    served_at = models.DateTimeField(null=True, blank=True)  # when it was last taken
    num_losses = models.PositiveSmallIntegerField(default=0)  # since its last step
    num_done = models.PositiveIntegerField(default=0)  # completions
    result = models.JSONField[dict[str, Any]](default=dict)  # as summary.py makes it
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=~Q(state__in=[s.value for s in HELD])
                | Q(lease_until__isnull=False, claim__isnull=False),
                name="rescoring_held_has_lease",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
            # The beat looks only at these.
            models.Index(
                fields=["state", "lease_until"],
                condition=Q(state__in=[s.value for s in OPEN]),
                name="rescoring_open",
            ),
        ]

    def __str__(self) -> str:
        return f"Rescoring {self.pk}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


class RescoredStep(models.Model):
    """What came of a step: packed records, laid out in records.py."""

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
