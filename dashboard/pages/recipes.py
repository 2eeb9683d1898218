"""Reward recipes: lists, details, tests, and one form for recipes and versions.

Every button posts the whole form with an `action`, so the server keeps no state. With
scripts, htmx swaps the changed part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.db.models import Max
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.access import get_membership, get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.queries import first_rows, list_versions
from dashboard.datasets.suggestions import suggest_rule
from dashboard.pages.requests import Request, choose_version, read_number
from dashboard.project.edits import MAX_DIFFERENCES, EditConflict, compare_texts
from dashboard.rewards.forms import NewRecipeForm, TryForm
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import (
    read_recipe,
    recipe_sentence,
    write_formula,
    write_json,
)
from dashboard.rewards.services import (
    get_recipe,
    list_recipes,
    save_recipe_version,
    versions_with_use,
)
from dashboard.rewards.workbench import (
    MAX_SECONDS,
    WorkbenchRow,
    calls_models,
    pick_rows,
    try_recipe,
    warn_unscorable,
)
from trainer.rewards.rules import RULES
from trainer.rewards.sandbox.pool import asking_for
from trainer.rewards.spec import Recipe, recipe_bounds

COMBINATIONS = {
    "sum": "Sum",
    "product": "Product",
    "minimum": "Minimum",
    "normalize_then_sum": "Sum, each normalised within its group (GDPO)",
}
# Actions on the input.
EDITS = ("add", "remove", "up", "down", "example", "split", "read_json")


@require_GET
def reward(request: Request, team: str, recipe_id: int) -> HttpResponse:
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


@require_GET
def rewards(request: Request, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    recipes = [
        (recipe, version, recipe_sentence(Recipe.model_validate(version.spec)))
        for recipe in list_recipes(team_)
        for version in recipe.newest  # type: ignore[attr-defined]  # prefetched by list_recipes
    ]
    context = {"team": team_, "recipes": recipes}
    return render(request, "rewards/list.html", context)


@require_POST
def reward_try(request: Request, team: str) -> HttpResponse:
    """Scores with the form's recipe; stores nothing."""
    membership = get_membership(request.user, team)
    draft = RecipeDraft.posted(request.POST)
    draft.validate()
    context = {"team": membership.team, "draft": draft}
    if request.POST.get("action") == "warn":
        rows = _rows(TryForm(membership.team, request.POST))
        context |= {
            "try_warnings": _warnings(membership.team, draft.recipe, rows),
            "num_rows": len(rows),
        }
        return render(request, "rewards/try_warnings.html", context)
    context |= workbench_context(
        request, membership.team, draft, may_call_models=membership.can_write
    )
    return render(request, "rewards/workbench.html", context)


def workbench_context(
    request: Request,
    team: Team,
    draft: RecipeDraft,
    *,
    may_call_models: bool,
    shown: DatasetVersion | None = None,
) -> dict[str, Any]:
    """`may_call_models`: whether rules may call models, which may cost money.

    `shown`: the version whose rows a form without a choice shows.
    """
    posted = request.POST if "try-offset" in request.POST else None
    form = TryForm(team, posted, shown=shown)
    rows = _rows(form)
    texts = {row.position: _typed(request, row) for row in rows}
    recipe = draft.recipe
    is_refused = recipe is not None and not may_call_models and calls_models(recipe)
    if is_refused:
        recipe = None
    with asking_for(f"team {team.pk}"):
        benches = (
            try_recipe(recipe, rows, texts)
            if recipe
            else [WorkbenchRow(row, texts[row.position], [], []) for row in rows]
        )
    return {
        "try_form": form,
        "try_rule_names": [rule.name for rule in recipe.rules] if recipe else [],
        "benches": benches,
        "try_warnings": _warnings(team, recipe, rows),
        "try_is_refused": is_refused,
        "max_seconds": MAX_SECONDS,
    }


def _warnings(
    team: Team, recipe: Recipe | None, rows: list[DatasetRow]
) -> dict[str, str]:
    """Viewers see them too: they call no judge."""
    if recipe is None:
        return {}
    with asking_for(f"team {team.pk}"):
        return warn_unscorable(recipe, rows)


def _rows(form: TryForm) -> list[DatasetRow]:
    if form.shown is None or (form.is_bound and not form.is_valid()):
        return []
    chosen = form.cleaned_data if form.is_bound else {}
    return pick_rows(
        chosen.get("version") or form.shown,
        offset=chosen.get("offset") or 0,
        seed=chosen.get("seed"),
    )


def _typed(request: Request, row: DatasetRow) -> str:
    return request.POST.get(f"completion-{row.position}", "")


@require_http_methods(["GET", "POST"])
def reward_new(request: Request, team: str) -> HttpResponse:
    if request.method == "POST":
        return _edit(request, get_writable_team(request, team), None)
    team_ = get_team(request, team)
    draft = RecipeDraft([])
    version = _asked_version(team_, request.GET.get("dataset"))
    suggested = suggest_rule(first_rows(version)) if version else None
    if suggested is None:
        draft.add("numeric_answer")
    else:
        draft.add(suggested.kind, suggested.params)
    draft.add("format_tags")
    draft.rules[-1].weight = "0.2"
    draft.validate()
    return _render(request, team_, None, draft, NewRecipeForm(team_), shown=version)


def _asked_version(team: Team, version_id: str | None) -> DatasetVersion | None:
    """The dataset version that the address names."""
    number = read_number(version_id)
    return list_versions(team).filter(pk=number).first() if number else None


@require_http_methods(["GET", "POST"])
def reward_edit(request: Request, team: str, recipe_id: int) -> HttpResponse:
    if request.method == "POST":
        team_ = get_writable_team(request, team)
        return _edit(request, team_, get_recipe(team_, recipe_id))
    team_ = get_team(request, team)
    recipe = get_recipe(team_, recipe_id)
    version = choose_version(versions_with_use(recipe), request.GET.get("version"))
    draft = RecipeDraft.of(Recipe.model_validate(version.spec))
    draft.validate()
    return _render(request, team_, recipe, draft, None)


@require_POST
def reward_check(request: Request, team: str) -> HttpResponse:
    """The effects of a changed field: errors, sentence, JSON.

    Of the name, only whether it is still refused: the JSON may be incomplete.
    """
    team_ = get_team(request, team)
    draft = RecipeDraft.posted(request.POST)
    draft.validate()
    context = {"team": team_, "is_swap": True, **derived_context(draft)}
    context |= _refusal_context(request, team_, draft)
    if request.POST.get("action") == "refusal":
        return render(request, "rewards/refusal_swapped.html", context)
    return render(request, "rewards/editor_checked.html", context)


def _refusal_context(
    request: Request, team: Team, draft: RecipeDraft
) -> dict[str, Any]:
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


def _edit(request: Request, team: Team, existing: RewardRecipe | None) -> HttpResponse:
    action, _, argument = request.POST.get("action", "").partition(":")
    draft = apply_action(RecipeDraft.posted(request.POST), action, argument, request)
    draft.validate()
    form = None if existing else NewRecipeForm(team, request.POST)
    if action != "save":
        form = None if existing else NewRecipeForm(team, initial=request.POST.dict())
        return _render(request, team, existing, draft, form)
    if draft.recipe is None or (form is not None and not form.is_valid()):
        return _render(request, team, existing, draft, form, status=422)
    return _save(request, team, existing, draft, form)


def apply_action(
    draft: RecipeDraft, action: str, argument: str, request: Request
) -> RecipeDraft:
    number = read_number(argument.partition(":")[0]) or 0
    if action == "add":
        draft.add(argument or request.POST.get("add_kind", ""))
    elif action == "remove":
        draft.remove(number)
    elif action == "example":
        draft.insert_example(number, argument.partition(":")[2])
    elif action == "split":
        draft.split(number)
    elif action == "save":
        draft.split_unnamed()
    elif action in ("up", "down"):
        draft.move(number, -1 if action == "up" else 1)
    elif action == "read_json":
        return _from_json(draft, request.POST.get("json", ""))
    return draft


def _from_json(draft: RecipeDraft, text: str) -> RecipeDraft:
    try:
        return RecipeDraft.of(read_recipe(text))
    except ValueError as error:
        # Keep the fields and the invalid text.
        draft.json_errors = str(error).splitlines()
        draft.typed_json = text
        return draft


def _save(
    request: Request,
    team: Team,
    existing: RewardRecipe | None,
    draft: RecipeDraft,
    form: NewRecipeForm | None,
) -> HttpResponse:
    recipe = draft.recipe
    assert recipe is not None
    typed = form.cleaned_data if form else {"name": existing.name if existing else ""}
    newest = existing.versions.order_by("number").last() if existing else None
    try:
        version = save_recipe_version(
            team=team,
            name=typed["name"],
            recipe=recipe,
            user=request.user,
            existing=existing,
            description=typed.get("description", ""),
            seen=read_seen(request.POST),
        )
    except EditConflict:
        assert existing is not None
        more = show_meanwhile(existing, recipe)
        return _render(request, team, existing, draft, form, status=409, **more)
    messages.success(request, _outcome(version, newest))
    return redirect("reward", team.slug, version.recipe_id)


def read_seen(given: Mapping[str, str]) -> int | None:
    """The newest version's number when the form was opened."""
    return read_number(given.get("seen"))


def seen_by(existing: RewardRecipe | None, given: Mapping[str, str]) -> int | None:
    """The form's `seen`, or the newest version when it is first shown."""
    if existing is None or "seen" in given:
        return read_seen(given)
    return existing.versions.aggregate(last=Max("number"))["last"]  # type: ignore[no-any-return]  # untyped


def show_meanwhile(existing: RewardRecipe, mine: Recipe) -> dict[str, Any]:
    """The changes of a conflict, for a second save over the newest version."""
    newest = existing.versions.select_related("created_by").latest("number")
    theirs = write_json(Recipe.model_validate(newest.spec))
    changes = compare_texts(theirs, write_json(mine))
    return {
        "meanwhile": newest,
        "seen": newest.number,
        "changes": changes[:MAX_DIFFERENCES],
        "num_changes": len(changes),
    }


def _outcome(version: RecipeVersion, newest: RecipeVersion | None) -> str:
    if version == newest:
        return f"No changes: version {version.number} already has these rules."
    return f"Saved as version {version.number}."


def _render(
    request: Request,
    team: Team,
    existing: RewardRecipe | None,
    draft: RecipeDraft,
    form: NewRecipeForm | None,
    status: int = 200,
    shown: DatasetVersion | None = None,
    **more: Any,
) -> HttpResponse:
    context = {
        "seen": seen_by(existing, request.POST),
        "team": team,
        "recipe": existing,
        "form": form,
        "is_refused": status == 422,
        "kinds": sorted(RULES.values(), key=lambda rule: rule.title),
        **derived_context(draft),
        **more,
    }
    if request.htmx:
        context |= _refusal_context(request, team, draft)
        return render(request, "rewards/editor_swapped.html", context)
    # Viewers only get here by GET, without completions for a model to judge.
    context |= workbench_context(
        request, team, draft, may_call_models=True, shown=shown
    )
    return render(request, "rewards/editor.html", context, status=status)


def derived_context(draft: RecipeDraft) -> dict[str, Any]:
    recipe = draft.recipe
    return {
        "draft": draft,
        "combinations": COMBINATIONS,
        "sentence": recipe_sentence(recipe) if recipe else "",
        "formula": write_formula(recipe) if recipe else "",
        "bounds": recipe_bounds(recipe) if recipe else None,
    }
