"""Metric summaries of the run list, stars, saved views, presets, chart settings."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Named, Team
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models.run import Run


class MetricSummary(models.Model):
    """A metric over the current history of a run; see charts/downsampling.py."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="metric_summaries")
    name = models.CharField(max_length=120)
    last = models.FloatField()
    last_step = models.PositiveIntegerField()
    low = models.FloatField()
    low_step = models.PositiveIntegerField()  # the first one that has it
    high = models.FloatField()
    high_step = models.PositiveIntegerField()
    total = models.FloatField()
    num = models.PositiveIntegerField()  # of steps, or of evaluations

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "name"], name="metric_summarized_once"
            ),
            models.CheckConstraint(
                condition=Q(num__gt=0), name="metric_summary_has_values"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["name"], name="metric_summary_name"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.name}"


class RunStar(models.Model):
    """A user's star of a run."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="stars")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="run_stars"
    )

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "run"], name="run_starred_once"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} stars {self.run_id}"


def make_code() -> str:
    """Short, but not guessable."""
    return secrets.token_urlsafe(6)


class ViewPage(models.TextChoices):
    """A page whose address is saved; the label names its parameter and default, too."""

    RUNS = "runs", "view"
    METRICS = "metrics", "board"  # of any run


class SavedView(Named):
    """An address of a page under a name, for its owner or for the team."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="run_views")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="run_views"
    )
    code = models.SlugField(max_length=16, unique=True, default=make_code)
    page = models.CharField(
        max_length=10, choices=ViewPage, default=ViewPage.RUNS, db_default=ViewPage.RUNS
    )
    name = models.CharField(max_length=60)
    # q=…&cols=…&sort=… or show=…&x=…
    query = models.CharField(max_length=4_000, blank=True)
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "owner", "page", "name"], name="view_name_free"
            ),
        ]


class DefaultView(models.Model):
    """The view that opens a user's run list of a team, and the board of its runs."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    view = models.ForeignKey(SavedView, models.SET_NULL, null=True, related_name="+")
    board = models.ForeignKey(SavedView, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["team", "user"], name="one_default_run_view"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id}: {self.view_id}, {self.board_id}"


# Setting changes of a run, a team's presets, a user's chart settings.


class SettingChange(models.Model):
    """Settings of a run that were changed after its launch, by path.

    `Run.config` has the new ones. A trainer starts with the settings at launch, and
    applies each change at the step of its first application (trainer.config.Change).
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="changes")
    number = models.PositiveIntegerField()  # 1, 2, 3 … of the run
    before = models.JSONField[dict[str, int]]()
    after = models.JSONField[dict[str, int]]()
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    asked_at = models.DateTimeField(auto_now_add=True)
    applied_step = models.PositiveIntegerField(null=True, db_column="heard_step")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["run", "number"], name="setting_change_number_free"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} change {self.number}"

    @property
    def values(self) -> list[tuple[str, int, int]]:
        """Path, old value and new value of each setting."""
        return [(path, self.before[path], new) for path, new in self.after.items()]


class TeamPreset(Named):
    """Saved settings of the launch form."""

    team = models.ForeignKey(Team, models.CASCADE)
    name = models.CharField(max_length=60)
    config = models.JSONField[dict[str, Any]]()  # without rows etc.
    model = models.TextField(blank=True)  # a path; "": not kept
    recipe_version = models.ForeignKey(
        RecipeVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    saved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="preset_name_free"),
        ]


class ChartSettings(models.Model):
    """A user's chart settings, as in the address of a run's page."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="chart_settings"
    )
    query = models.CharField(max_length=1_000)  # smooth=0.6&x=step…

    def __str__(self) -> str:
        return f"{self.user}: {self.query}"


class PinnedMetrics(models.Model):
    """The metrics whose charts come first in each run of a team."""

    team = models.OneToOneField(Team, models.CASCADE, primary_key=True)
    names = ArrayField(models.CharField(max_length=130), default=list)

    def __str__(self) -> str:
        return f"{len(self.names)} of {self.team_id}"
