"""The launch form: shown, checked, and launched as a run or a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team
from dashboard.pages.requests import Request, read_id
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.config.fields import (
    needed_columns,
    recipe_facts,
    unused_table,
)
from dashboard.runs.config.toml import EXAMPLE
from dashboard.runs.launch.eval_sets import describe_sets, read_drafts
from dashboard.runs.launch.form import PROMPT_PATHS, LaunchForm
from dashboard.runs.launch.form_fields import Choices, choices_of
from dashboard.runs.launch.initial_values import (
    RECOMMENDED,
    Start,
    default_start,
    find_start,
    offer_presets,
    offer_team_presets,
    propose_name,
)
from dashboard.runs.launch.services import launch_run, launch_sweep
from dashboard.runs.launch.summary import summarize, warn
from dashboard.runs.launch.sweep import SweepPlan, describe_sweep
from dashboard.runs.launch.team_presets import version_of_preset
from dashboard.runs.launch.toml import TomlDraft
from trainer.rewards.spec import Recipe

CHOICES = ("model", "dataset", "recipe")


@require_http_methods(["GET", "HEAD", "POST"])
def run_new(request: Request, team: str) -> HttpResponse:
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    if request.method != "POST":
        form, unknown = _prefilled(request, team_, choices)
        return show_form(request, team_, form, unknown=unknown)
    if "starter" in request.POST:  # the form as it is shown first, in one click
        form, unknown = _prefilled(request, team_, choices)
    else:
        start, unknown = read_start(request.POST, team_, choices)
        form = LaunchForm.from_post(request.POST, choices, start)
        form.fit_rows()
    if unknown:  # such as a deleted checkpoint
        return show_form(request, team_, form, refused=unknown, status=422)
    launch = form.check()
    if launch is None or (warn(launch) and request.POST.get("confirmed") != "on"):
        return show_form(request, team_, form, status=422)
    sweep = SweepPlan.read(request.POST)
    sweep.plan(form)
    if sweep.problem:
        return show_form(request, team_, form, refused=sweep.problem, status=422)
    try:
        if sweep.runs:
            return _launch_sweep(request, team_, form, sweep)
        run = launch_run(
            launch,
            team=team_,
            user=request.user,
            cloned_from=form.start.run,
            fork_of=form.start.fork,
        )
    except ValueError as error:  # its dataset or checkpoint was deleted in the meantime
        return show_form(request, team_, form, refused=str(error), status=422)
    return redirect("run", team_.slug, run.pk)


@require_POST
def run_new_summary(request: Request, team: str) -> HttpResponse:
    """The estimate for the form as filled in; changes nothing."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    summary, problems = summarize(form), form.problems
    general = {"": problems.general} if problems.general else {}
    context = {
        "team": team_,
        "form": form,
        "summary": summary,
        "problems": problems.by_field | general,
        "is_live": True,
    }
    return render(request, "runs/launch_summary.html", context)


@require_POST
def run_new_start(request: Request, team: str) -> HttpResponse:
    """Where the settings come from, after another model, dataset or preset was chosen.

    The page takes over the values of fields that the user did not change.
    """
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    if form.start.key == RECOMMENDED:
        form.recommend()
    else:
        form.load(form.start)
    form.fit_rows()
    return render(request, "runs/launch_start.html", _start_context(team_, form))


@require_POST
def run_new_recipe(request: Request, team: str) -> HttpResponse:
    """Save the reward of a preset as a recipe of the team, and choose it."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    start = form.start
    if start.recipe is None:
        raise Http404("This preset has no reward.")
    try:
        version = save_recipe_version(
            team=team_,
            name=free_name(team_, f"{start.name} reward"),
            recipe=Recipe.model_validate(start.recipe),
            user=request.user,
            description=f"The reward of {start.title}.",
        )
    except ValueError as error:  # such as a name that is taken
        messages.error(request, str(error))
    else:
        messages.success(request, f"Saved as {version}.")
        form.choices = choices_of(team_)
        form.recipe, form.chosen = str(version.pk), form.chosen | {"recipe"}
    return show_form(request, team_, form)


def _launch_sweep(
    request: Request, team: Team, form: LaunchForm, sweep: SweepPlan
) -> HttpResponse:
    launched = launch_sweep(
        team=team,
        user=request.user,
        name=form.name,
        launches=[one.launch for one in sweep.runs],
        cloned_from=form.start.run,
        fork_of=form.start.fork,
    )
    query = urlencode({"sweep": launched.pk})
    return redirect(f"{reverse('runs', args=[team.slug])}?{query}")


def show_form(
    request: Request,
    team: Team,
    form: LaunchForm,
    *,
    unknown: str = "",
    refused: str = "",
    toml: TomlDraft | None = None,
    preset_problem: str = "",
    preset_conflict: dict[str, Any] | None = None,
    preset_version: str = "",
    status: int = 200,
) -> HttpResponse:
    """`refused`: why a valid form was not launched."""
    was_refused = status != 200 and not (toml or preset_problem)
    summary = summarize(form)  # which checks the form again
    if refused:
        form.problems.general.append(refused)
    if status == 200 or toml:
        form.clear_problems()
    start = form.start.team_preset
    context = {
        "team": team,
        "form": form,
        "summary": summary,
        "unknown_start": unknown,
        **_start_context(team, form),
        "refused": refused,
        "toml": toml,
        "preset_problem": preset_problem,
        "preset_conflict": preset_conflict,
        "preset_version": preset_version
        or request.POST.get("preset_version")
        or (version_of_preset(start) if start else ""),
        **describe_sweep(request.POST, form),
        "presets": offer_presets(),
        "team_presets": offer_team_presets(team),
        "unused_table": unused_table(),
        "recipe_facts": {
            str(version.pk): recipe_facts(version.spec)
            for version in form.choices.recipes
        },
        "needed_columns": {
            str(version.pk): needed_columns(version.spec)
            for version in form.choices.recipes
        },
        "dataset_columns": {
            str(version.pk): version.mapping.get("columns", [])
            for version in form.choices.datasets
        },
        "phases_example": EXAMPLE,
        "must_confirm": bool(summary.warnings) and was_refused,
        "section": describe_sets(form),
        "sets_url": reverse("run_new_sets", args=[team.slug]),
        "start_url": reverse("run_new_start", args=[team.slug]),
        "summary_url": reverse("run_new_summary", args=[team.slug]),
        "preview_url": reverse("run_new_prompt", args=[team.slug]),
        "preview_form": "#launch-form",
        "shows_prompt": any(path in request.GET for path in PROMPT_PATHS),
    }
    return render(request, "runs/launch.html", context, status=status)


def _start_context(team: Team, form: LaunchForm) -> dict[str, Any]:
    """What describes the start, and its values for the fields."""
    missing = form.missing_recipe
    return {
        "team": team,
        "form": form,
        "missing_recipe_text": recipe_sentence(missing) if missing else "",
        "start_values": {
            "heading": _heading(form.start),
            "name": form.start.name,
            "texts": form.start.texts,
            "phases": form.start.phases,
            "model": form.model_path,
            "dataset": form.dataset,
            "recipe": form.recipe,
            "step_recipe": form.step_recipe,
            "has_step_recipe": form.start.step_recipe is not None,
        },
    }


def kept_choices(form: LaunchForm) -> dict[str, str]:
    """Choices that stay when other settings are loaded."""
    chosen = {
        "name": form.name,
        "model": form.model_path,
        "dataset": form.dataset,
        "recipe": form.recipe,
    }
    for draft in form.eval_sets:
        chosen |= draft.controls
    return {name: text for name, text in chosen.items() if text}


def _heading(start: Start) -> str:
    if start.run is None:
        return "New run"
    if start.fork is None:
        return f"Clone {start.run.name}"
    return f"Fork {start.run.name} at step {start.fork.step}"


def read_start(
    query: Mapping[str, str], team: Team, choices: Choices
) -> tuple[Start, str]:
    """The start of the settings; for an unknown name, the defaults and an error."""
    key = query.get("preset", RECOMMENDED)
    clone, fork = query.get("clone", ""), query.get("fork", "")
    if "preset" not in query and read_id(clone) is not None:
        key = f"run-{clone}"
    if "preset" not in query and read_id(fork) is not None:
        key = f"fork-{fork}-{query.get('checkpoint', '')[:40]}"
    try:
        start = find_start(
            key,
            team=team,
            starters=choices.starters,
            scaled=query.get("scaled") in ("1", "on"),
            model=query.get("model") or query.get("model_other", ""),
            version=choices.find_dataset(query.get("dataset", "")),
        )
    except ValueError as error:
        return default_start(), str(error)
    return start, ""


def read_form(request: Request, team: Team, **changes: str) -> LaunchForm:
    """The form as submitted, but for these fields."""
    choices = choices_of(team)
    post = request.POST.copy()
    for name, text in changes.items():
        post[name] = text
    start, _ = read_start(post, team, choices)
    form = LaunchForm.from_post(post, choices, start)
    form.fit_rows()
    return form


def _prefilled(
    request: Request, team: Team, choices: Choices
) -> tuple[LaunchForm, str]:
    """With what the address names; an error if it names an unknown preset."""
    given = request.GET
    start, unknown = read_start(given, team, choices)
    form = LaunchForm(choices=choices, name="", model="")
    form.chosen = frozenset(name for name in CHOICES if given.get(name))
    if start.key != RECOMMENDED:
        form.load(start)
    form.name = given.get("name") or propose_name(team)
    form.dataset = given.get("dataset") or form.dataset
    form.recipe = given.get("recipe") or form.recipe
    form.preselect_only_choices()
    if model := given.get("model"):
        form.use_model(model)
    elif not form.model_path:
        form.choose_starter()
    if start.key == RECOMMENDED:
        form.recommend()
    if start.run is not None:
        form.chosen = frozenset(CHOICES)
    form.eval_sets = read_drafts(given, choices) or form.eval_sets
    for path in PROMPT_PATHS:
        if path in given:
            form.texts[path] = given[path].replace("\x00", "")
    form.fit_rows()
    form.texts |= form.fit.texts
    return form, unknown
