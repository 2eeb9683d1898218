from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.prompt_preview import (
    SETTINGS,
    Preview,
    preview_version,
    read_row,
)
from dashboard.datasets.queries import list_versions
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.sentences import recipe_sentence
from dashboard.rewards.services import free_name, save_recipe_version
from dashboard.runs.config_fields import read_tree
from dashboard.runs.eval_section import describe_sets
from dashboard.runs.eval_sets import read_drafts
from dashboard.runs.forms import Choices, Launch, LaunchForm
from dashboard.runs.idle_fields import describe_idle, recipe_facts
from dashboard.runs.launch_summary import summarize, warn
from dashboard.runs.model_choices import check_model, starter_models
from dashboard.runs.models import Run
from dashboard.runs.names import propose_name
from dashboard.runs.phase_text import EXAMPLE
from dashboard.runs.services import launch_run
from dashboard.runs.starts import (
    Start,
    default_start,
    find_start,
    offer_presets,
    offer_starters,
)
from trainer.rewards.spec import Recipe

# What the form's address keeps when a preset's reward was saved.
KEPT = ("preset", "scaled", "name", "model", "dataset")

# Settings that a dataset's page sends along.
PROMPT_PATHS = tuple(f"data.{name}" for name in SETTINGS)


@require_http_methods(["GET", "HEAD", "POST"])
def run_new(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    if request.method != "POST":
        start, unknown = read_start(request.GET, team_, choices)
        form = _prefilled(request, team_, choices, start)
        return show_form(request, team_, form, unknown=unknown)
    start, _ = read_start(request.POST, team_, choices)
    form = LaunchForm.from_post(request.POST, choices, start)
    launch = form.check()
    if launch is None or _must_confirm(request, launch):
        return show_form(request, team_, form, status=422)
    try:
        run = _launch(request, team_, launch, cloned_from=start.run)
    except ValueError as error:  # its dataset was moved to the trash meanwhile
        return show_form(request, team_, form, refused=str(error), status=422)
    return redirect("run", team_.slug, run.pk)


@require_POST
def run_new_summary(request: HttpRequest, team: str) -> HttpResponse:
    """What the form, as it stands, amounts to; changes nothing."""
    team_ = get_writable_team(request, team)
    choices = choices_of(team_)
    start, _ = read_start(request.POST, team_, choices)
    form = LaunchForm.from_post(request.POST, choices, start)
    context = {
        "team": team_,
        "form": form,
        "summary": summarize(form),
        "is_live": True,
    }
    return render(request, "runs/launch_summary.html", context)


@require_POST
def run_new_prompt(request: HttpRequest, team: str) -> HttpResponse:
    """A row of the chosen dataset as the chosen model sees it; stores nothing."""
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
        return Preview(problem="Choose a dataset: its first rows are shown here.")
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
def run_new_recipe(request: HttpRequest, team: str) -> HttpResponse:
    """Keep the reward of a preset as a recipe of the team, and go back to the form."""
    team_ = get_writable_team(request, team)
    start, _ = read_start(request.POST, team_, choices_of(team_))
    if start.recipe is None:
        raise Http404("This start brings no reward.")
    assert isinstance(request.user, User)
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
    except ValueError as error:  # such as a name that was taken meanwhile
        messages.error(request, str(error))
    else:
        messages.success(request, f"Saved as {version}.")
        kept["recipe"] = str(version.pk)
    query = urlencode(kept)
    return redirect(f"{reverse('run_new', args=[team_.slug])}?{query}")


def _must_confirm(request: HttpRequest, launch: Launch) -> bool:
    return bool(warn(launch)) and request.POST.get("confirmed") != "on"


def _launch(
    request: HttpRequest, team: Team, launch: Launch, *, cloned_from: Run | None
) -> Run:
    assert isinstance(request.user, User)
    return launch_run(
        team=team,
        user=request.user,
        name=launch.name,
        config=launch.config,
        dataset_version=launch.dataset_version,
        recipe_version=launch.recipe_version,
        model_label=launch.model_label,
        evaluation_sets=launch.evaluation_sets,
        cloned_from=cloned_from,
    )


def show_form(
    request: HttpRequest,
    team: Team,
    form: LaunchForm,
    *,
    unknown: str = "",
    refused: str = "",
    status: int = 200,
) -> HttpResponse:
    """`refused`: why what the form asks for was not begun, though it is in order."""
    is_first_look = status == 200
    summary = summarize(form)  # which looks for problems anew
    if refused:
        form.problems.together.append(refused)
    wanted = form.wants_recipe
    if is_first_look:
        form.forget_problems()
    context = {
        "team": team,
        "form": form,
        "summary": summary,
        "unknown_start": unknown,
        "refused": refused,
        "presets": offer_presets(),
        "starter_settings": offer_starters(form.choices.starters),
        "kept": _kept(form),
        "wanted_sentence": recipe_sentence(wanted) if wanted else "",
        "idle_table": describe_idle(),
        "recipe_facts": {
            str(version.pk): recipe_facts(version.spec)
            for version in form.choices.recipes
        },
        "phases_example": EXAMPLE,
        "must_confirm": bool(summary.warnings) and not is_first_look,
        "section": describe_sets(form),
        "sets_url": reverse("run_new_sets", args=[team.slug]),
        "summary_url": reverse("run_new_summary", args=[team.slug]),
        "preview_url": reverse("run_new_prompt", args=[team.slug]),
        "preview_form": "#launch-form",
        "shows_prompt": any(path in request.GET for path in PROMPT_PATHS),
    }
    return render(request, "runs/launch.html", context, status=status)


def _kept(form: LaunchForm) -> dict[str, str]:
    """What stays chosen when the settings begin anew."""
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
    """Where the settings begin; with an unknown name the defaults, and a sentence."""
    key = query.get("preset", "")
    clone = query.get("clone", "")
    if not key and clone.isdecimal() and len(clone) < 19:
        key = f"run-{clone}"
    scaled = query.get("scaled") == "1"
    try:
        start = find_start(key, team=team, starters=choices.starters, scaled=scaled)
    except ValueError as error:
        return default_start(), str(error)
    return start, ""


def choices_of(team: Team) -> Choices:
    datasets = list_versions(team)
    recipes = RecipeVersion.objects.filter(recipe__team=team)
    return Choices(
        starters=starter_models(),
        datasets=list(datasets.order_by("dataset__name", "dataset_id", "-number")),
        recipes=list(
            recipes.select_related("recipe").order_by("recipe__name", "-number")
        ),
    )


def _prefilled(
    request: HttpRequest, team: Team, choices: Choices, start: Start
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
    form.choose_only_ones()
    if model := given.get("model"):
        form.use_model(model)
    elif not form.model_path:
        form.choose_starter()
    return form
