"""The launch form's parts: presets, evaluation sets, prompt preview, TOML, sweep."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.datasets.token_preview import (
    SETTINGS,
    Preview,
    preview_version,
    read_row,
)
from dashboard.pages.launch import kept_choices, read_form, show_form
from dashboard.pages.requests import Request
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.config.fields import read_tree
from dashboard.runs.launch.base_models import check_model
from dashboard.runs.launch.eval_sets import change_sets, describe_sets
from dashboard.runs.launch.form import LaunchForm
from dashboard.runs.launch.form_fields import choices_of
from dashboard.runs.launch.initial_values import RECOMMENDED, default_start
from dashboard.runs.launch.sweep import describe_sweep
from dashboard.runs.launch.team_presets import (
    contents_of,
    delete_preset,
    rename_preset,
    save_preset,
    write_contents,
)
from dashboard.runs.launch.toml import apply_toml, write_form
from dashboard.runs.queries import get_team_preset
from dashboard.web.edits import (
    BASE,
    EditConflict,
    compare_texts,
    show_conflict,
)
from trainer.rewards.spec import Recipe

PLAIN = "text/plain; charset=utf-8"
UNFINISHED = "Fix the form first: a preset can only store valid settings."


@require_POST
def preset_save(request: Request, team: str) -> HttpResponse:
    """Save the settings of the form as a preset, and start from it."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    launch = form.check()
    if launch is None:
        return show_form(request, team_, form, preset_problem=UNFINISHED, status=422)
    name, start = request.POST.get("preset_name", ""), form.start.team_preset
    is_of_start = start is not None and start.name == name.strip()
    try:
        preset = save_preset(
            team=team_,
            user=request.user,
            name=name,
            launch=launch,
            keeps_model=request.POST.get("keeps_model") == "on",
            keeps_recipe=request.POST.get("keeps_recipe") == "on",
            overwrites=request.POST.get("overwrites") == "on",
            base=request.POST.get("preset_version", "") if is_of_start else "",
        )
    except EditConflict as conflict:
        return _show_both(request, team_, form, conflict)
    except ValueError as error:
        return show_form(request, team_, form, preset_problem=str(error), status=422)
    messages.success(request, f"Saved preset {preset.name}.")
    query = kept_choices(form) | {"preset": f"team:{preset.pk}"}
    return redirect(f"{reverse('run_new', args=[team_.slug])}?{urlencode(query)}")


def _show_both(
    request: Request, team: Team, form: LaunchForm, conflict: EditConflict
) -> HttpResponse:
    theirs = form.start.team_preset
    assert theirs is not None
    saved = contents_of(theirs)
    mine = saved | {clash.field: clash.typed for clash in conflict.clashes}
    return show_form(
        request,
        team,
        form,
        preset_conflict={
            "saved_by": theirs.saved_by,
            "saved_at": theirs.saved_at,
            **compare_texts(write_contents(saved), write_contents(mine)),
        },
        preset_version=conflict.version,
        status=409,
    )


@require_POST
def preset_change(request: Request, team: str, pk: int) -> HttpResponse:
    """Rename it, or delete it. A script keeps what was typed into the form."""
    team_ = get_writable_team(request, team)
    preset = get_team_preset(team_, pk)
    if request.POST.get("action") == "delete":
        delete_preset(preset=preset, user=request.user)
        messages.success(request, f"Deleted preset {preset.name}.")
        return _show_changed(request, team_, RECOMMENDED)
    before, name = preset.name, request.POST.get("new_name", "")
    base = request.POST.get(BASE, "")
    try:
        rename_preset(preset=preset, user=request.user, name=name, base=base)
    except EditConflict as conflict:
        [clash] = conflict.clashes
        if "HX-Request" not in request.headers:
            return show_conflict(
                request,
                conflict,
                what=f"the preset {preset.name}",
                back=_address(team_, f"team:{pk}"),
                labels={"new_name": "Name"},
                team=team_,
                saved=last_entry(team_, preset, "preset.renamed"),
            )
        messages.error(
            request,
            f"Another user renamed this preset to {clash.now}. Rename it again to "
            "replace that name.",
        )
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"Renamed preset {before} to {preset.name}.")
    return _show_changed(request, team_, f"team:{pk}")


def _show_changed(request: Request, team: Team, key: str) -> HttpResponse:
    if "HX-Request" in request.headers:
        return show_form(request, team, read_form(request, team, preset=key))
    return redirect(_address(team, key))


def _address(team: Team, key: str) -> str:
    return f"{reverse('run_new', args=[team.slug])}?{urlencode({'preset': key})}"


@require_POST
def run_new_sets(request: Request, team: str) -> HttpResponse:
    """The form's evaluation sets with one more or less. Without an action, only their
    notes, so that no field is replaced while it is edited."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    action = request.POST.get("eval_action", "")
    change_sets(form, action)
    context = {
        "team": team_,
        "form": form,
        "section": describe_sets(form, action),
        "sets_url": reverse("run_new_sets", args=[team_.slug]),
    }
    template = "launch_sets" if action else "launch_sets_notes"
    return render(request, f"runs/{template}.html", context)


@require_POST
def run_new_prompt(request: Request, team: str) -> HttpResponse:
    """The prompt preview: a row of the chosen dataset as the model reads it."""
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    form = LaunchForm.from_post(request.POST, choices, default_start())
    context = {
        "preview": _preview(team_, form, read_row(request.POST)),
        "preview_url": reverse("run_new_prompt", args=[team_.slug]),
        "preview_form": "#launch-form",
    }
    return render(request, "datasets/prompt_preview.html", context)


def _preview(team: Team, form: LaunchForm, row: int) -> Preview:
    if form.dataset_version is None:
        return Preview(problem="Choose a dataset to preview its first rows.")
    if problem := check_model(form.model_path):
        return Preview(problem=problem)
    data = read_tree(form.texts)["data"]
    names = (*SETTINGS, "max_prompt_tokens")
    return preview_version(
        team,
        form.dataset_version,
        model=form.model_path,
        row=row,
        data={name: data[name] for name in names},
    )


@require_POST
def run_new_toml(request: Request, team: str) -> HttpResponse:
    """The form as filled in, as the engine's TOML; changes nothing."""
    form = read_form(request, get_writable_team(request, team))
    try:
        return HttpResponse(write_form(form), content_type=PLAIN)
    except ValueError as error:
        return HttpResponse(str(error), content_type=PLAIN, status=422)


@require_POST
def run_new_from_toml(request: Request, team: str) -> HttpResponse:
    """The form with the TOML applied; on errors, the TOML again."""
    team_ = get_writable_team(request, team)
    form, text = read_form(request, team_), request.POST.get("toml", "")
    draft = apply_toml(form, text)
    if draft.unknown_recipes and request.POST.get("saves_rewards"):
        for spec in draft.unknown_recipes.values():
            save_recipe_version(
                team=team_,
                name=free_name(team_, "Reward from TOML"),
                recipe=Recipe.model_validate(spec),
                user=request.user,
                description="Read from the TOML of a launch form.",
            )
        form.choices = choices_of(team_)
        draft = apply_toml(form, text)
    status = 422 if draft.problems else 200
    return show_form(request, team_, form, toml=draft, status=status)


@require_POST
def run_new_plan(request: Request, team: str) -> HttpResponse:
    """The runs that the form would launch; changes nothing."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    form.check()
    context = describe_sweep(request.POST, form)
    context |= {"form": form, "is_live": True}
    return render(request, "runs/launch_plan.html", context)
