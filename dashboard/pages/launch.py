"""The launch form: shown, checked, and launched as a run or a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team
from dashboard.pages.requests import Request, read_id
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.config.fields import recipe_facts, unused_table
from dashboard.runs.config.toml import EXAMPLE
from dashboard.runs.launch.eval_sets import describe_sets, read_drafts
from dashboard.runs.launch.form import PROMPT_PATHS, Launch, LaunchForm
from dashboard.runs.launch.form_fields import Choices, choices_of
from dashboard.runs.launch.initial_values import (
    Start,
    default_start,
    find_start,
    offer_presets,
    offer_starters,
    offer_team_presets,
    propose_name,
)
from dashboard.runs.launch.row_limits import FITTED
from dashboard.runs.launch.services import launch_run, launch_sweep
from dashboard.runs.launch.summary import summarize, warn
from dashboard.runs.launch.sweep import SweepPlan, describe_sweep
from dashboard.runs.launch.team_presets import fingerprint
from dashboard.runs.launch.toml import TomlDraft
from trainer.rewards.spec import Recipe

# Parameters that stay in the form's address after a preset's reward is saved.
KEPT = ("preset", "scaled", "name", "model", "dataset")


@require_http_methods(["GET", "HEAD", "POST"])
def run_new(request: Request, team: str) -> HttpResponse:
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    if request.method != "POST":
        start, unknown = read_start(request.GET, team_, choices)
        form = _prefilled(request, team_, choices, start)
        return show_form(request, team_, form, unknown=unknown)
    start, unknown = read_start(request.POST, team_, choices)
    form = LaunchForm.from_post(request.POST, choices, start)
    if unknown:  # such as a deleted checkpoint
        return show_form(request, team_, form, refused=unknown, status=422)
    launch = form.check()
    if launch is None or _must_confirm(request, launch):
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
            cloned_from=start.run,
            fork_of=start.fork,
        )
    except ValueError as error:  # its dataset or checkpoint was deleted in the meantime
        return show_form(request, team_, form, refused=str(error), status=422)
    return redirect("run", team_.slug, run.pk)


@require_POST
def run_new_summary(request: Request, team: str) -> HttpResponse:
    """The estimate for the form as filled in; changes nothing."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    context = {
        "team": team_,
        "form": form,
        "summary": summarize(form),
        "is_live": True,
    }
    return render(request, "runs/launch_summary.html", context)


@require_POST
def run_new_fit(request: Request, team: str) -> JsonResponse:
    """The settings that depend on the rows, fitted to the chosen dataset."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    form.fit_rows()
    starts = {path: form.start.texts[path] for path in FITTED}
    sentences = " ".join(form.fit.sentences)
    return JsonResponse({"texts": starts | form.fit.texts, "sentences": sentences})


@require_POST
def run_new_recipe(request: Request, team: str) -> HttpResponse:
    """Save the reward of a preset as a recipe of the team, and return to the form."""
    team_ = get_writable_team(request, team)
    start, _ = read_start(request.POST, team_, choices_of(team_))
    if start.recipe is None:
        raise Http404("This preset has no reward.")
    kept = {
        name: str(text)
        for name, text in request.POST.items()
        if text and (name in KEPT or name.startswith("eval-"))
    }
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
        kept["recipe"] = str(version.pk)
    query = urlencode(kept)
    return redirect(f"{reverse('run_new', args=[team_.slug])}?{query}")


def _must_confirm(request: Request, launch: Launch) -> bool:
    return bool(warn(launch)) and request.POST.get("confirmed") != "on"


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
    preset_changes: Sequence[tuple[str, str]] = (),
    seen_preset: str = "",
    status: int = 200,
) -> HttpResponse:
    """`refused`: why a valid form was not launched."""
    was_refused = status != 200 and not (toml or preset_problem)
    summary = summarize(form)  # which checks the form again
    if refused:
        form.problems.general.append(refused)
    missing = form.missing_recipe
    if status == 200 or toml:
        form.clear_problems()
    context = {
        "team": team,
        "form": form,
        "summary": summary,
        "unknown_start": unknown,
        "refused": refused,
        "toml": toml,
        "preset_problem": preset_problem,
        "preset_changes": preset_changes,
        "seen_preset": seen_preset
        or request.POST.get("seen_preset")
        or _fingerprint(form),
        **describe_sweep(request.POST, form),
        "presets": offer_presets(),
        "team_presets": offer_team_presets(team),
        "starter_settings": offer_starters(form.choices.starters),
        "kept": kept_choices(form),
        "missing_recipe_text": recipe_sentence(missing) if missing else "",
        "unused_table": unused_table(),
        "recipe_facts": {
            str(version.pk): recipe_facts(version.spec)
            for version in form.choices.recipes
        },
        "phases_example": EXAMPLE,
        "must_confirm": bool(summary.warnings) and was_refused,
        "section": describe_sets(form),
        **_addresses(team),
        "preview_form": "#launch-form",
        "shows_prompt": any(path in request.GET for path in PROMPT_PATHS),
    }
    return render(request, "runs/launch.html", context, status=status)


def _fingerprint(form: LaunchForm) -> str:
    return fingerprint(form.start.team_preset) if form.start.team_preset else ""


def _addresses(team: Team) -> dict[str, str]:
    """The addresses that the form requests while it is filled in."""
    return {
        "sets_url": reverse("run_new_sets", args=[team.slug]),
        "fit_url": reverse("run_new_fit", args=[team.slug]),
        "summary_url": reverse("run_new_summary", args=[team.slug]),
        "preview_url": reverse("run_new_prompt", args=[team.slug]),
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


def read_start(
    query: Mapping[str, str], team: Team, choices: Choices
) -> tuple[Start, str]:
    """The start of the settings; for an unknown name, the defaults and an error."""
    key = query.get("preset", "")
    clone, fork = query.get("clone", ""), query.get("fork", "")
    if not key and read_id(clone) is not None:
        key = f"run-{clone}"
    if not key and read_id(fork) is not None:
        key = f"fork-{fork}-{query.get('checkpoint', '')[:40]}"
    scaled = query.get("scaled") == "1"
    try:
        start = find_start(key, team=team, starters=choices.starters, scaled=scaled)
    except ValueError as error:
        return default_start(), str(error)
    return start, ""


def read_form(request: Request, team: Team) -> LaunchForm:
    """The form as submitted."""
    choices = choices_of(team)
    start, _ = read_start(request.POST, team, choices)
    return LaunchForm.from_post(request.POST, choices, start)


def _prefilled(
    request: Request, team: Team, choices: Choices, start: Start
) -> LaunchForm:
    given = request.GET
    form = LaunchForm.from_start(start, choices, given.get("name", ""))
    form.name = form.name or propose_name(team)
    form.dataset = given.get("dataset") or form.dataset
    form.recipe = given.get("recipe") or form.recipe
    form.eval_sets = read_drafts(given, choices) or form.eval_sets
    for path in PROMPT_PATHS:
        if path in given:
            form.texts[path] = given[path].replace("\x00", "")
    form.preselect_only_choices()
    preset = start.team_preset
    if model := given.get("model") or (preset.model if preset else ""):
        form.use_model(model)
    elif not form.model_path:
        form.choose_starter()
    form.fit_rows()
    form.texts |= form.fit.texts
    return form
