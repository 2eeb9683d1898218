"""The TOML tab of the launch form."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.launch.form_fields import choices_of
from dashboard.runs.launch.toml import TomlDraft, apply_toml, write_form
from dashboard.runs.views.launch import read_form, show_form
from trainer.rewards.spec import Recipe

PLAIN = "text/plain; charset=utf-8"


@require_POST
def run_new_toml(request: HttpRequest, team: str) -> HttpResponse:
    """The form, as it stands, as the engine's TOML; changes nothing."""
    form = read_form(request, get_writable_team(request, team))
    try:
        return HttpResponse(write_form(form), content_type=PLAIN)
    except ValueError as error:
        return HttpResponse(str(error), content_type=PLAIN, status=422)


@require_POST
def run_new_from_toml(request: HttpRequest, team: str) -> HttpResponse:
    """The form with what the TOML says; the TOML again where something is wrong."""
    team_ = get_writable_team(request, team)
    form, text = read_form(request, team_), request.POST.get("toml", "")
    draft = apply_toml(form, text)
    if draft.unknown_recipes and request.POST.get("saves_rewards"):
        _save_recipes(request, team_, draft)
        form.choices = choices_of(team_)
        draft = apply_toml(form, text)
    status = 422 if draft.problems else 200
    return show_form(request, team_, form, toml=draft, status=status)


def _save_recipes(request: HttpRequest, team: Team, draft: TomlDraft) -> None:
    assert isinstance(request.user, User)
    for spec in draft.unknown_recipes.values():
        save_recipe_version(
            team=team,
            name=free_name(team, "Reward from TOML"),
            recipe=Recipe.model_validate(spec),
            user=request.user,
            description="Read from the TOML of a launch form.",
        )
