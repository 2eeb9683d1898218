"""Everything that reads recipes. Another team's are not found."""

from __future__ import annotations

from django.db.models import Count, Prefetch
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.rewards.models import RecipeVersion, RewardRecipe


def list_recipes(team: Team) -> list[RewardRecipe]:
    """Two queries; `newest` is a list of one version."""
    newest = (
        RecipeVersion.objects.order_by("recipe_id", "-number")
        .distinct("recipe_id")
        .select_related("created_by")
    )
    return list(
        team.recipes.annotate(
            num_versions=Count("versions", distinct=True),
            # A relation of a higher rung, named by string only.
            num_runs=Count("versions__runs", distinct=True),
        )
        .prefetch_related(Prefetch("versions", newest, to_attr="newest"))
        .order_by("-pk")
    )


def get_recipe(team: Team, recipe_id: int) -> RewardRecipe:
    return get_object_or_404(team.recipes.select_related("created_by"), pk=recipe_id)


def versions_with_use(recipe: RewardRecipe) -> list[RecipeVersion]:
    return list(
        recipe.versions.select_related("created_by")
        .annotate(num_runs=Count("runs"))
        .order_by("-number")
    )
