from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import recipe_sentence, write_formula, write_json
from dashboard.rewards.services import get_recipe, versions_with_use
from trainer.rewards.spec import Recipe, recipe_bounds


@require_GET
def reward(request: HttpRequest, team: str, recipe_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    recipe = get_recipe(team_, recipe_id)
    versions = versions_with_use(recipe)
    version = choose_version(versions, request.GET.get("version"))
    spec = Recipe.model_validate(version.spec)
    context = {
        "team": team_,
        "recipe": recipe,
        "versions": [
            (item, recipe_sentence(Recipe.model_validate(item.spec)))
            for item in versions
        ],
        "version": version,
        "rules": RecipeDraft.of(spec).rules,
        "sentence": recipe_sentence(spec),
        "formula": write_formula(spec),
        "bounds": recipe_bounds(spec),
        "json_text": write_json(spec),
    }
    return render(request, "rewards/detail.html", context)


def choose_version(versions: list[RecipeVersion], number: str | None) -> RecipeVersion:
    """The version asked for by number; the newest when none is."""
    if not number:
        return versions[0]
    for version in versions:
        if str(version.number) == number:
            return version
    raise Http404("No such version.")
