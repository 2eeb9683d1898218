from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from dashboard.accounts.models import Team


class RewardRecipe(models.Model):
    team = models.ForeignKey(Team, models.CASCADE, related_name="recipes")
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="recipe_name_free"),
        ]

    def __str__(self) -> str:
        return self.name


class RecipeVersion(models.Model):
    """A validated `trainer.rewards.spec.Recipe` as JSON that never changes again."""

    recipe = models.ForeignKey(RewardRecipe, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    content_sha256 = models.CharField(max_length=64)
    spec = models.JSONField[dict[str, Any]]()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["recipe", "number"], name="recipe_version_number_free"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.recipe} v{self.number}"
