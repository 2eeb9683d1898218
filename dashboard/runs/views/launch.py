from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.config_fields import write_texts
from dashboard.runs.forms import Choices, Launch, LaunchForm
from dashboard.runs.launch_summary import summarize, warn
from dashboard.runs.model_choices import starter_models
from dashboard.runs.models import Run
from dashboard.runs.names import propose_name
from dashboard.runs.queries import get_run
from dashboard.runs.services import launch_run


@require_http_methods(["GET", "HEAD", "POST"])
def run_new(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_writable_team(request, team)
    if request.method != "POST":
        cloned_from = _cloned_from(team_, request.GET.get("clone", ""))
        form = _prefilled(request, team_, cloned_from)
        return _show(request, team_, form, cloned_from)
    cloned_from = _cloned_from(team_, request.POST.get("clone", ""))
    form = LaunchForm.from_post(request.POST, _choices(team_))
    launch = form.check()
    if launch is None or _must_confirm(request, launch):
        return _show(request, team_, form, cloned_from, status=422)
    run = _launch(request, team_, launch, cloned_from)
    return redirect("run", team_.slug, run.pk)


@require_POST
def run_new_summary(request: HttpRequest, team: str) -> HttpResponse:
    """What the form, as it stands, amounts to; changes nothing."""
    team_ = get_writable_team(request, team)
    form = LaunchForm.from_post(request.POST, _choices(team_))
    context = {
        "team": team_,
        "form": form,
        "summary": summarize(form),
        "is_live": True,
    }
    return render(request, "runs/launch_summary.html", context)


def _must_confirm(request: HttpRequest, launch: Launch) -> bool:
    return bool(warn(launch)) and request.POST.get("confirmed") != "on"


def _launch(
    request: HttpRequest, team: Team, launch: Launch, cloned_from: Run | None
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
        cloned_from=cloned_from,
    )


def _show(
    request: HttpRequest,
    team: Team,
    form: LaunchForm,
    cloned_from: Run | None,
    status: int = 200,
) -> HttpResponse:
    is_first_look = status == 200
    summary = summarize(form)
    if is_first_look:
        form.forget_problems()
    context = {
        "team": team,
        "form": form,
        "summary": summary,
        "cloned_from": cloned_from,
        "must_confirm": bool(summary.warnings) and not is_first_look,
        "summary_url": reverse("run_new_summary", args=[team.slug]),
    }
    return render(request, "runs/launch.html", context, status=status)


def _cloned_from(team: Team, pk: str) -> Run | None:
    """The run in ?clone=; another team's is as unknown as none."""
    return get_run(team, int(pk)) if pk.isdecimal() and len(pk) < 19 else None


def _choices(team: Team) -> Choices:
    datasets = DatasetVersion.objects.filter(dataset__team=team)
    recipes = RecipeVersion.objects.filter(recipe__team=team)
    return Choices(
        starters=starter_models(),
        datasets=list(
            datasets.select_related("dataset").order_by("dataset__name", "-number")
        ),
        recipes=list(
            recipes.select_related("recipe").order_by("recipe__name", "-number")
        ),
    )


def _prefilled(request: HttpRequest, team: Team, cloned_from: Run | None) -> LaunchForm:
    choices = _choices(team)
    form = LaunchForm(choices=choices, name=propose_name(team), model="")
    if len(choices.starters) == 1:
        form.use_model(choices.starters[0].path)
    if cloned_from is not None:
        form.take_over(cloned_from)
    starter = choices.find_starter(request.GET.get("preset", ""))
    if starter is not None:
        form.use_model(starter.path)
        form.texts = write_texts(starter.read_settings())
    form.dataset = request.GET.get("dataset") or form.dataset
    form.recipe = request.GET.get("recipe") or form.recipe
    form.choose_only_ones()
    return form
