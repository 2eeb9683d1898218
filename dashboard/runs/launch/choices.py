"""What a team can choose from on the launch form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_text import is_same_reward
from dashboard.runs.launch.model_choices import StarterModel, offered_models


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    starters: list[StarterModel]
    datasets: list[DatasetVersion]
    recipes: list[RecipeVersion]

    def find_dataset(self, pk: str) -> DatasetVersion | None:
        return next(
            (version for version in self.datasets if str(version.pk) == pk), None
        )

    def find_recipe(self, pk: str) -> RecipeVersion | None:
        return next(
            (version for version in self.recipes if str(version.pk) == pk), None
        )

    def find_equal_recipe(self, spec: dict[str, Any]) -> RecipeVersion | None:
        """The team's own version of a recipe, the newest when there are several."""
        return next((version for version in self.recipes if version.spec == spec), None)

    def find_same_recipe(self, spec: dict[str, Any]) -> RecipeVersion | None:
        """That, or one that gives the same rewards."""
        same = (one for one in self.recipes if is_same_reward(one.spec, spec))
        return self.find_equal_recipe(spec) or next(same, None)


def choices_of(team: Team) -> Choices:
    datasets = list_versions(team)
    recipes = RecipeVersion.objects.filter(recipe__team=team)
    return Choices(
        starters=offered_models(team),
        datasets=list(datasets.order_by("dataset__name", "dataset_id", "-number")),
        recipes=list(
            recipes.select_related("recipe").order_by("recipe__name", "-number")
        ),
    )
