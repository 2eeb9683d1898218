from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.rewards.services import list_recipes
from trainer.rewards.spec import Recipe


@require_GET
def rewards(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    recipes = [
        (recipe, version, recipe_sentence(Recipe.model_validate(version.spec)))
        for recipe in list_recipes(team_)
        for version in recipe.newest  # type: ignore[attr-defined]  # prefetched by list_recipes
    ]
    context = {"team": team_, "recipes": recipes}
    return render(request, "rewards/list.html", context)
