"""The launch form: shown, checked, launched as a run or a sweep; and its parts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST
from pydantic import ValidationError

from dashboard.accounts.access import get_writing_membership, look_up
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.analysis.probes.services import describe_wait
from dashboard.costs.reports import forecast
from dashboard.datasets.queries import first_rows, list_versions
from dashboard.datasets.suggestions import suggest_rule
from dashboard.datasets.token_preview import (
    SETTINGS,
    Preview,
    preview_version,
    read_row,
)
from dashboard.pages.requests import Request, read_id
from dashboard.project.schema_forms import message_of
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.config.fields import read_tree
from dashboard.runs.config.toml import EXAMPLE
from dashboard.runs.launch.base_models import check_model
from dashboard.runs.launch.draft import (
    PROMPT_PATHS,
    LaunchDraft,
    choices_of,
    prefill_draft,
    read_draft,
)
from dashboard.runs.launch.eval_sets import change_sets, describe_sets
from dashboard.runs.launch.language_model import (
    offer_model,
    read_offer,
    start_download,
)
from dashboard.runs.launch.launching import check_draft, launch_run, launch_sweep
from dashboard.runs.launch.page import (
    Amount,
    Summary,
    describe_choices,
    describe_fields,
    describe_start,
    describe_times,
    summarize,
    warn,
)
from dashboard.runs.launch.starts import (
    RECOMMENDED,
    contents_of,
    default_start,
    delete_preset,
    offer_team_presets,
    rename_preset,
    save_preset,
    version_of_preset,
    write_contents,
)
from dashboard.runs.launch.sweep import SweepPlan, describe_sweep
from dashboard.runs.launch.toml import TomlDraft, apply_toml, write_form
from dashboard.runs.queries import get_team_preset
from dashboard.supervision.starter import GAME, prepare_game
from dashboard.web.edits import (
    BASE,
    EditConflict,
    compare_texts,
    show_conflict,
)
from trainer.config import EnvironmentConfig
from trainer.rewards.spec import Recipe

PLAIN = "text/plain; charset=utf-8"
ENVIRONMENT_RECIPE = {"rules": [{"name": "environment", "kind": "environment"}]}
UNFINISHED = "Fix the form first: a preset can only store valid settings."


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership)
def run_new(request: Request, team: Team) -> HttpResponse:
    if request.method != "POST":
        return show_form(request, team, prefill_draft(request.GET, team))
    # Of a starter the form as it is shown first, in one click.
    if request.POST.get("starter") == GAME:
        try:
            form = prefill_draft(prepare_game(team, request.user), team)
        except (OSError, ValueError) as error:  # such as a full disk or quota
            messages.error(request, str(error))
            return redirect("runs", team.slug)
    elif "starter" in request.POST:
        form = prefill_draft(request.GET, team)
    else:
        form = read_draft(request.POST, team)
    if form.unknown_start:  # such as a deleted checkpoint
        refused = form.unknown_start
        return show_form(request, team, form, refused=refused, status=422)
    launch = check_draft(form)
    if launch is None or (warn(launch) and request.POST.get("confirmed") != "on"):
        return show_form(request, team, form, status=422)
    if launch.config.environment.is_there:
        # Of a tokenizer that is not loaded yet the trainer finds them at its start.
        refused = " ".join(_preview(team, form, row=0).refusals)
        if refused:
            return show_form(request, team, form, refused=refused, status=422)
    sweep = SweepPlan.read(request.POST)
    sweep.plan(form)
    if sweep.problem:
        return show_form(request, team, form, refused=sweep.problem, status=422)
    start = form.start
    try:
        if not sweep.runs:
            run = launch_run(
                launch,
                team=team,
                user=request.user,
                cloned_from=start.run,
                fork_of=start.fork,
            )
            return redirect("run", team.slug, run.pk)
        launched = launch_sweep(
            team=team,
            user=request.user,
            name=form.name,
            launches=[planned.launch for planned in sweep.runs],
            cloned_from=start.run,
            fork_of=start.fork,
        )
    except ValueError as error:  # its dataset or checkpoint was deleted in the meantime
        return show_form(request, team, form, refused=str(error), status=422)
    query = urlencode({"sweep": launched.pk})
    return redirect(f"{reverse('runs', args=[team.slug])}?{query}")


def show_form(
    request: Request,
    team: Team,
    form: LaunchDraft,
    *,
    refused: str = "",
    toml: TomlDraft | None = None,
    preset_problem: str = "",
    preset_conflict: dict[str, Any] | None = None,
    preset_version: str = "",
    status: int = 200,
) -> HttpResponse:
    """Show the form; `refused`: why a valid one was not launched."""
    was_refused = status != 200 and not (toml or preset_problem)
    summary = _summarize(team, form)  # which checks the form again
    if refused:
        form.problems.general.append(refused)
    # What to choose is no error yet.
    if (status == 200 and form.missing) or (toml and toml.problems):
        form.clear_problems()
    preset = form.start.team_preset
    context = {
        "team": team,
        "summary": summary,
        **describe_start(form),
        **describe_choices(form.choices),
        "fields": describe_fields(form),
        "unknown_start": "" if refused else form.unknown_start,
        "refused": refused,
        "was_refused": was_refused,
        "toml": toml,
        "preset_problem": preset_problem,
        "preset_conflict": preset_conflict,
        "preset_version": preset_version
        or request.POST.get("preset_version")
        or (version_of_preset(preset) if preset else ""),
        **describe_sweep(request.POST or request.GET, form),
        "team_presets": offer_team_presets(team),
        "phases_example": EXAMPLE,
        "must_confirm": bool(summary.warnings) and was_refused,
        "offer": offer_model(team, form),
        "test_wait": _test_wait(summary),
        "section": describe_sets(form.eval_sets, form.dataset_version),
        "sets_url": reverse("run_new_sets", args=[team.slug]),
        "start_url": reverse("run_new_start", args=[team.slug]),
        "summary_url": reverse("run_new_summary", args=[team.slug]),
        "preview_url": reverse("run_new_prompt", args=[team.slug]),
        "preview_form": "#launch-form",
        "shows_prompt": any(path in request.GET for path in PROMPT_PATHS),
    }
    return render(request, "runs/launch.html", context, status=status)


def _summarize(team: Team, form: LaunchDraft) -> Summary:
    """Sum up the draft, with what it will cost by today's prices."""
    summary = summarize(form)
    if summary.config and summary.seconds:
        bill = forecast(
            team, summary.config, device=summary.device, seconds=summary.seconds
        )
        how = "without servers, judges and evaluations"
        summary.amounts.append(Amount(title="Cost", value=bill.text, how=how))
    return summary


def _test_wait(summary: Summary) -> str:
    config = summary.config
    return describe_wait(config.model_dump(mode="json")) if config else ""


@require_POST
@look_up(get_writing_membership)
def run_new_summary(request: Request, team: Team) -> HttpResponse:
    """Show the estimate for the form as filled in; change nothing."""
    form = read_draft(request.POST, team)
    summary, problems = _summarize(team, form), form.problems
    general = {"": problems.general} if problems.general else {}
    context = {
        "team": team,
        "form": form,
        "summary": summary,
        "problems": problems.by_field | general,
        "offer": offer_model(team, form),
        "test_wait": _test_wait(summary),
        "is_live": True,
    }
    return render(request, "runs/launch_summary.html", context)


@require_POST
@look_up(get_writing_membership)
def run_new_start(request: Request, team: Team) -> HttpResponse:
    """Show the settings' origin after another model, dataset or preset was chosen.

    The page takes over the values of fields that the user did not change.
    """
    form = read_draft(request.POST, team)
    if form.start.key == RECOMMENDED:
        form.recommend()
    else:
        form.load(form.start)
    form.fit_rows()
    context = {"team": team, **describe_start(form)}
    return render(request, "runs/launch_start.html", context)


@require_POST
@look_up(get_writing_membership)
def run_new_recipe(request: Request, team: Team) -> HttpResponse:
    """Save the reward of a preset, or an environment's, as the team's; choose it."""
    form = read_draft(request.POST, team)
    start = form.start
    spec, name, owner = start.recipe, f"{start.name} reward", start.title
    if "of_environment" in request.POST:
        spec, name, owner = ENVIRONMENT_RECIPE, "Environment", "the environment"
    if spec is None:
        raise Http404("This preset has no reward.")
    try:
        version = save_recipe_version(
            team=team,
            name=free_name(team, name),
            recipe=Recipe.model_validate(spec),
            user=request.user,
            description=f"The reward of {owner}.",
        )
    except ValueError as error:  # such as a name that is taken
        messages.error(request, str(error))
    else:
        messages.success(request, f"Saved as {version}.")
        form.choices = choices_of(team)
        form.recipe, form.chosen = str(version.pk), form.chosen | {"recipe"}
    return show_form(request, team, form)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership)
def run_new_model(request: Request, team: Team) -> HttpResponse:
    """Download the language model; show how far it is, as the page asks each second."""
    if request.method == "POST":
        start_download(team, request.user)
    context = {"team": team, "offer": read_offer(team)}
    return render(request, "runs/launch_model.html", context)


@require_POST
@look_up(get_writing_membership)
def run_new_rows(request: Request, team: Team) -> HttpResponse:
    """Save the reward that a dataset's rows suggest, and open New run with both."""
    number = read_id(request.POST.get("dataset"))
    version = get_object_or_404(list_versions(team), pk=number)
    query = {"dataset": version.pk}
    if suggestion := suggest_rule(first_rows(version)):
        draft = RecipeDraft([])
        draft.add(suggestion.kind, suggestion.params)
        recipe = draft.validate()
        assert recipe, "a suggestion is valid"
        saved = choices_of(team).find_same_recipe(recipe.model_dump(mode="json"))
        if saved is None:
            saved = save_recipe_version(
                team=team,
                name=free_name(team, suggestion.title),
                recipe=recipe,
                user=request.user,
                description=f"Suggested for {version}: {suggestion.reason}",
            )
            messages.success(request, f"Saved the suggested reward {saved}.")
        query["recipe"] = saved.pk
    return redirect(f"{reverse('run_new', args=[team.slug])}?{urlencode(query)}")


@require_POST
@look_up(get_writing_membership)
def preset_save(request: Request, team: Team) -> HttpResponse:
    """Save the settings of the form as a preset, and start from it."""
    form = read_draft(request.POST, team)
    launch = check_draft(form)
    if launch is None:
        return show_form(request, team, form, preset_problem=UNFINISHED, status=422)
    name, start = request.POST.get("preset_name", ""), form.start.team_preset
    is_of_start = start is not None and start.name == name.strip()
    try:
        preset = save_preset(
            team=team,
            user=request.user,
            name=name,
            config=launch.config,
            keeps_model=request.POST.get("keeps_model") == "on",
            recipe_version=launch.recipe_version
            if request.POST.get("keeps_recipe") == "on"
            else None,
            overwrites=request.POST.get("overwrites") == "on",
            base=request.POST.get("preset_version", "") if is_of_start else "",
        )
    except EditConflict as conflict:
        return _show_both(request, team, form, conflict)
    except ValueError as error:
        return show_form(request, team, form, preset_problem=str(error), status=422)
    messages.success(request, f"Saved preset {preset.name}.")
    query = form.own_choices | {"preset": f"team:{preset.pk}"}
    return redirect(f"{reverse('run_new', args=[team.slug])}?{urlencode(query)}")


def _show_both(
    request: Request, team: Team, form: LaunchDraft, conflict: EditConflict
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
@look_up(get_writing_membership)
def preset_change(request: Request, team: Team, pk: int) -> HttpResponse:
    """Rename it, or delete it. A script keeps what was typed into the form."""
    preset = get_team_preset(team, pk)
    if request.POST.get("action") == "delete":
        delete_preset(preset=preset, user=request.user)
        messages.success(request, f"Deleted preset {preset.name}.")
        return _show_changed(request, team, RECOMMENDED)
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
                back=_address(team, f"team:{pk}"),
                labels={"new_name": "Name"},
                team=team,
                saved=last_entry(team, preset, "preset.renamed"),
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
    return _show_changed(request, team, f"team:{pk}")


def _show_changed(request: Request, team: Team, key: str) -> HttpResponse:
    if "HX-Request" in request.headers:
        post = {**request.POST.dict(), "preset": key}
        return show_form(request, team, read_draft(post, team))
    return redirect(_address(team, key))


def _address(team: Team, key: str) -> str:
    return f"{reverse('run_new', args=[team.slug])}?{urlencode({'preset': key})}"


@require_POST
@look_up(get_writing_membership)
def run_new_sets(request: Request, team: Team) -> HttpResponse:
    """Show evaluation sets with one more or less. Without an action, only their
    notes, so that no field is replaced while it is edited."""
    form = read_draft(request.POST, team)
    action = request.POST.get("eval_action", "")
    version = form.dataset_version
    form.eval_sets = change_sets(form.eval_sets, version, form.choices, action)
    context = {
        "team": team,
        "form": form,
        "section": describe_sets(form.eval_sets, version, action),
        "sets_url": reverse("run_new_sets", args=[team.slug]),
    }
    template = "launch_sets" if action else "launch_sets_notes"
    return render(request, f"runs/{template}.html", context)


@require_POST
@look_up(get_writing_membership)
def run_new_prompt(request: Request, team: Team) -> HttpResponse:
    """Show a row of the chosen dataset as the model reads it."""
    form = LaunchDraft.from_form(request.POST, choices_of(team), default_start())
    context = {
        "preview": _preview(team, form, read_row(request.POST)),
        "environment": form.texts["environment.kind"],
        "preview_url": reverse("run_new_prompt", args=[team.slug]),
        "preview_form": "#launch-form",
    }
    return render(request, "datasets/prompt_preview.html", context)


def _preview(team: Team, form: LaunchDraft, row: int) -> Preview:
    if form.dataset_version is None:
        return Preview(problem="Choose a dataset to preview its first rows.")
    if problem := check_model(form.model_path):
        return Preview(problem=problem)
    tree = read_tree(form.texts)
    try:
        environment = EnvironmentConfig.model_validate(tree["environment"])
    except ValidationError as error:
        return Preview(problem=message_of(error.errors()[0]))
    seed = tree["seed"] if tree["seed"].isdecimal() else "0"  # while it is typed
    episodes = {"environment": environment.model_dump(), "seed": seed}
    data, names = tree["data"], (*SETTINGS, "max_prompt_tokens")
    return preview_version(
        team,
        form.dataset_version,
        model=form.model_path,
        row=row,
        data={name: data[name] for name in names},
        episodes=episodes if environment.is_there else None,
    )


@require_POST
@look_up(get_writing_membership)
def run_new_toml(request: Request, team: Team) -> HttpResponse:
    """Write the form as filled in as the engine's TOML; change nothing."""
    form = read_draft(request.POST, team)
    try:
        return HttpResponse(write_form(form), content_type=PLAIN)
    except ValueError as error:
        return HttpResponse(str(error), content_type=PLAIN, status=422)


@require_POST
@look_up(get_writing_membership)
def run_new_from_toml(request: Request, team: Team) -> HttpResponse:
    """Show the form with the TOML applied; on errors, the TOML again."""
    form, text = read_draft(request.POST, team), request.POST.get("toml", "")
    draft = apply_toml(form, text)
    if draft.unknown_recipes and request.POST.get("saves_rewards"):
        for spec in draft.unknown_recipes.values():
            save_recipe_version(
                team=team,
                name=free_name(team, "Reward from TOML"),
                recipe=Recipe.model_validate(spec),
                user=request.user,
                description="Read from the TOML of a launch form.",
            )
        form.choices = choices_of(team)
        draft = apply_toml(form, text)
    status = 422 if draft.problems else 200
    return show_form(request, team, form, toml=draft, status=status)


@require_POST
@look_up(get_writing_membership)
def run_new_plan(request: Request, team: Team) -> HttpResponse:
    """Show the runs that the form would launch; change nothing."""
    form = read_draft(request.POST, team)
    check_draft(form)
    context = describe_sweep(request.POST, form)
    launches = [planned.launch for planned in context["sweep"].runs]
    times = describe_times(team, launches) if launches else ""
    context |= {"form": form, "is_live": True, "times": times}
    return render(request, "runs/launch_plan.html", context)
