"""Settings that are kept: what a run's became, a team's presets, a person's charts."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from dashboard.accounts.models import Team
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models.run import Run


class SettingChange(models.Model):
    """Settings of a run that were changed after its launch, by path.

    `Run.config` has the new ones; a trainer begins with the run's first ones and hears
    of each change at the step at which one heard of it first (trainer.config.Change).
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="changes")
    number = models.PositiveIntegerField()  # 1, 2, 3 … of the run
    before = models.JSONField[dict[str, int]]()
    after = models.JSONField[dict[str, int]]()
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    asked_at = models.DateTimeField(auto_now_add=True)
    heard_step = models.PositiveIntegerField(null=True)  # they hold behind it

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
        """Of each setting: its path, what it was, what it became."""
        return [(path, self.before[path], new) for path, new in self.after.items()]


class TeamPreset(models.Model):
    """Settings of the launch form that a team keeps under a name."""

    team = models.ForeignKey(Team, models.CASCADE)
    name = models.CharField(max_length=60)
    config = models.JSONField[dict[str, Any]]()  # without what a run chooses: rows …
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

    def __str__(self) -> str:
        return self.name


class ChartSettings(models.Model):
    """How somebody wants charts drawn, as the address of a run's page says it."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="chart_settings"
    )
    query = models.CharField(max_length=1_000)  # smooth=0.6&x=step…

    def __str__(self) -> str:
        return f"{self.user}: {self.query}"
