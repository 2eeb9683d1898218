"""Saves, lists and finds reward recipes. Another team's are not found."""

from __future__ import annotations

import hashlib
import json

from django.db import transaction
from django.db.models import Count, Prefetch
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.errors import UserError
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.web.edits import find_changes
from trainer.rewards.spec import Recipe


def save_recipe_version(
    *,
    team: Team,
    name: str,
    recipe: Recipe,
    user: User | None,
    existing: RewardRecipe | None = None,
    description: str = "",
    base: str = "",
) -> RecipeVersion:
    """Save the recipe as the next version of `existing`, or of a new one.

    Returns the newest version if the recipe equals it.

    Raises:
        UserError: `existing` is None and the team has a recipe of this name.
        EditConflict: the newest version is not the number `base`.
    """
    spec = recipe.model_dump(mode="json")
    sha256 = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    with transaction.atomic():
        if existing:
            # Two saves at once would otherwise both take the next number.
            owner = RewardRecipe.objects.select_for_update().get(pk=existing.pk)
        else:
            defaults = {"description": description, "created_by": user}
            owner, is_new = RewardRecipe.objects.get_or_create(
                team=team, name=name, defaults=defaults
            )
            if not is_new:
                raise UserError(
                    "rewards.name_taken",
                    f'{team} already has a reward named "{name}". Choose another '
                    "name, or save this as a new version of that reward.",
                )
        newest = owner.versions.order_by("-number").first()
        if newest and newest.content_sha256 == sha256:
            return newest
        if newest:
            now, typed = {"recipe": newest.spec}, {"recipe": spec}
            find_changes(now, typed, base, version=str(newest.number))
        version = owner.versions.create(
            number=newest.number + 1 if newest else 1,
            content_sha256=sha256,
            spec=spec,
            created_by=user,
        )
        record(
            owner.team,
            user,
            "recipe.version_created",
            version,
            recipe=owner.name,
            number=version.number,
        )
    return version


def free_name(team: Team, name: str) -> str:
    """This name, or with the first number that the team does not use yet."""
    names = set(
        RewardRecipe.objects.filter(team=team, name__startswith=name).values_list(
            "name", flat=True
        )
    )
    candidates = (name, *(f"{name} {number}" for number in range(2, len(names) + 3)))
    return next(candidate for candidate in candidates if candidate not in names)


def list_recipes(team: Team) -> list[RewardRecipe]:
    """Two queries; of `versions`, only the newest is read."""
    newest = (
        RecipeVersion.objects.order_by("recipe_id", "-number")
        .distinct("recipe_id")
        .select_related("created_by")
    )
    return list(
        team.recipes.annotate(
            num_versions=Count("versions", distinct=True),
            # A relation of a higher layer, named by string only.
            num_runs=Count("versions__runs", distinct=True),
        )
        .prefetch_related(Prefetch("versions", newest))
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
