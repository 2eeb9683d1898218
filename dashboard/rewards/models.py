from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from dashboard.accounts.models import Named, Team, WithCreator


class RewardRecipe(Named, WithCreator):
    team = models.ForeignKey(Team, models.CASCADE, related_name="recipes")
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="recipe_name_free"),
        ]


class RecipeVersion(WithCreator):
    """A validated `trainer.rewards.spec.Recipe` as JSON that never changes again."""

    recipe = models.ForeignKey(RewardRecipe, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    content_sha256 = models.CharField(max_length=64)
    spec = models.JSONField[dict[str, Any]]()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["recipe", "number"], name="recipe_version_number_free"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.recipe} v{self.number}"
