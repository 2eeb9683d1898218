"""Rewards: list and details, the gallery of rules, and what forms do with a draft.

Every button of a form posts the whole form with an `action`, so the server keeps no
state. With scripts, htmx swaps the changed part.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import F, FloatField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.pages.requests import Request, choose_version, read_id, read_number
from dashboard.project.errors import UserError
from dashboard.rewards.checks import check_rows
from dashboard.rewards.gallery import TEMPLATES, offered_rules, offered_templates
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import (
    read_recipe,
    recipe_sentence,
    write_formula,
    write_json,
)
from dashboard.rewards.services import get_recipe, list_recipes, versions_with_use
from dashboard.runs.models import REWARD, Run
from trainer.rewards.scoring import correctness_of
from trainer.rewards.spec import Recipe, recipe_bounds

COMBINATIONS = {
    "sum": "Sum",
    "product": "Product",
    "minimum": "Minimum",
    "normalize_then_sum": "Sum, each normalised within its group (GDPO)",
}
# Actions on the input.
EDITS = (
    *("add", "template", "remove", "up", "down", "move", "example", "split"),
    *("read_json", "read_formula"),
)
SHOWN_RUNS = 8  # of a reward's page
LAST_REWARD = Cast(KT(f"summary__last__{REWARD}"), FloatField())


MAX_NAME = 80


class NewRecipeForm(forms.Form):
    name = forms.CharField(
        label="Name",
        max_length=MAX_NAME,
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    description = forms.CharField(
        label="Description",
        required=False,
        max_length=2_000,
        widget=forms.Textarea(attrs={"class": "form-control", "rows": 2}),
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        self.team = team
        super().__init__(*args, **kwargs)

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if RewardRecipe.objects.filter(team=self.team, name=name).exists():
            raise forms.ValidationError(
                f'{self.team} already has a reward named "{name}". Choose another '
                "name, or edit that reward.",
                code="name_taken",
            )
        return name


@require_GET
@look_up(get_membership)
def rewards(request: Request, team: Team) -> HttpResponse:
    newest = (
        Run.objects.kept()
        .filter(team=team, last_step__gt=0, recipe_version__isnull=False)
        .order_by("recipe_version__recipe_id", "-id")
        .distinct("recipe_version__recipe_id")
        .annotate(last_reward=LAST_REWARD)
        .values("recipe_version__recipe_id", "id", "name", "last_reward")
    )
    last_runs = {run["recipe_version__recipe_id"]: run for run in newest}
    recipes = [
        (
            recipe,
            version,
            write_formula(Recipe.model_validate(version.spec)),
            last_runs.get(recipe.pk),
        )
        for recipe in list_recipes(team)
        for version in recipe.versions.all()  # prefetched: the newest alone
    ]
    context = {
        "team": team,
        "recipes": recipes,
        "templates": () if recipes else offered_templates(),
        "tab": "rewards",
    }
    return render(request, "rewards/list.html", context)


@require_GET
@look_up(get_membership, recipe=get_recipe)
def reward(request: Request, team: Team, recipe: RewardRecipe) -> HttpResponse:
    versions = versions_with_use(recipe)
    version = choose_version(versions, request.GET.get("version"))
    spec = Recipe.model_validate(version.spec)
    runs = Run.objects.kept().filter(team=team, recipe_version__recipe=recipe)
    context = {
        "team": team,
        "recipe": recipe,
        "versions": [
            (item, write_formula(Recipe.model_validate(item.spec))) for item in versions
        ],
        "version": version,
        "rules": RecipeDraft.of(spec).rules,
        "sentence": recipe_sentence(spec),
        "formula": write_formula(spec),
        "bounds": recipe_bounds(spec),
        "correct_if": correctness_of(spec).condition,
        "json_text": write_json(spec),
        "continued": Run.objects.kept()
        .filter(team=team, pk=read_id(request.GET.get("continue")) or 0)
        .first(),
        "num_runs": runs.count(),
        "runs": runs.annotate(
            last_reward=LAST_REWARD, recipe_number=F("recipe_version__number")
        )
        .order_by("-id")
        .values(
            *("id", "name", "state", "last_step", "num_steps", "model_label"),
            *("created_at", "last_reward", "recipe_number"),
        )[:SHOWN_RUNS],
    }
    return render(request, "rewards/detail.html", context)


@require_GET
@look_up(get_membership)
def reward_gallery(request: Request) -> HttpResponse:
    """The rules with examples."""
    return render(request, "rewards/gallery.html", {"categories": offered_rules()})


@require_POST
@look_up(get_membership)
def reward_check(request: Request, team: Team) -> HttpResponse:
    """The effects of a changed field: errors, formula, JSON.

    Of the name, only whether it is still refused: the JSON may be incomplete.
    """
    draft = RecipeDraft.posted(request.POST)
    draft.validate()
    context = {"team": team, "is_swap": True, **derived_context(draft)}
    context |= refusal_context(request, team, draft)
    if request.POST.get("action") == "refusal":
        return render(request, "rewards/refusal_swapped.html", context)
    return render(request, "rewards/editor_checked.html", context)


def refusal_context(request: Request, team: Team, draft: RecipeDraft) -> dict[str, Any]:
    """Whether the reason of a refused save still applies; empty without one."""
    if "refused" not in request.POST:
        return {}
    form = NewRecipeForm(team, request.POST) if "name" in request.POST else None
    is_refused = draft.recipe is None or (form is not None and not form.is_valid())
    named = ", ".join(draft.wrong_names)
    return {
        "name_form": form,
        "is_refused": is_refused,
        "is_refusal_other": not is_refused or named != request.POST["refused"],
    }


@require_GET
@look_up(get_membership)
def recipe_findings(request: Request, team: Team) -> HttpResponse:
    """What a launch form says of a saved recipe on a dataset's rows, both by ID."""
    recipe = RecipeVersion.objects.filter(
        recipe__team=team, pk=read_id(request.GET.get("recipe")) or 0
    ).first()
    version = DatasetVersion.objects.filter(
        dataset__team=team, pk=read_id(request.GET.get("dataset")) or 0
    ).first()
    findings = []
    if recipe and version:
        findings = check_rows(Recipe.model_validate(recipe.spec), version)
    context = {
        "team": team,
        "findings": findings,
        "recipe": recipe,
        "version": version,
    }
    return render(request, "probes/launch_findings.html", context)


def apply_action(
    draft: RecipeDraft, action: str, argument: str, request: Request
) -> RecipeDraft:
    first, _, second = argument.partition(":")
    number = read_number(first) or 0
    if action == "add":
        draft.add(argument)
    elif action == "template" and argument in TEMPLATES:
        return RecipeDraft.from_template(TEMPLATES[argument])
    elif action == "remove":
        draft.remove(number)
    elif action == "example":
        draft.insert_example(number, second)
    elif action == "split":
        draft.split(number)
    elif action == "save":
        draft.split_unnamed()
    elif action == "move":
        draft.move(number, (read_number(second) or 0) - number)
    elif action in ("up", "down"):
        draft.move(number, -1 if action == "up" else 1)
    elif action == "read_json":
        return _from_json(draft, request.POST.get("json", ""))
    elif action == "read_formula":
        _read_formula(draft, request.POST.get("formula", ""))
    return draft


def _read_formula(draft: RecipeDraft, text: str) -> None:
    try:
        draft.apply_formula(text)
    except UserError as error:
        # Keep the fields and the invalid text.
        draft.typed_formula, draft.formula_error = text, str(error)


def _from_json(draft: RecipeDraft, text: str) -> RecipeDraft:
    try:
        return RecipeDraft.of(read_recipe(text))
    except ValueError as error:
        # Keep the fields and the invalid text.
        draft.json_errors = str(error).splitlines()
        draft.typed_json = text
        return draft


def derived_context(draft: RecipeDraft) -> dict[str, Any]:
    recipe = draft.recipe
    return {
        "draft": draft,
        "combinations": COMBINATIONS,
        "bounds": recipe_bounds(recipe) if recipe else None,
        "correct_if": correctness_of(recipe).condition if recipe else "",
    }
