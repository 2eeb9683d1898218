"""A run's checkpoints, and published models."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request
from dashboard.pages.run_control import get_writable_run
from dashboard.runs.checkpoints import retention
from dashboard.runs.checkpoints.listing import list_checkpoints, next_checkpoint
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint
from dashboard.runs.queries import get_run
from dashboard.supervision.publishing import archive_model, publish, unpublish
from dashboard.web.downloads import attach
from dashboard.web.edits import BASE, EditConflict, show_conflict


@require_GET
def checkpoints(request: Request, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    listing = list_checkpoints(run)
    context = {
        "team": team_,
        "run": run,
        "tab": "checkpoints",
        "listing": listing,
        "next": next_checkpoint(run, listing),
        "unseen": "" if listing.is_seen else retention.unseen(run),
        "published": run.published_models.order_by("-pk"),
    }
    return render(request, "runs/checkpoints.html", context)


@require_POST
def checkpoint_pin(request: Request, team: str, run_id: int, name: str) -> HttpResponse:
    message = f"Pinned {name}. Cohort keeps it until you unpin it."
    return _change(request, team, run_id, name, retention.pin, message)


@require_POST
def checkpoint_unpin(
    request: Request, team: str, run_id: int, name: str
) -> HttpResponse:
    message = f"Unpinned {name}."
    return _change(request, team, run_id, name, retention.unpin, message)


@require_POST
def checkpoint_delete(
    request: Request, team: str, run_id: int, name: str
) -> HttpResponse:
    message = f"Deleted {name}."
    return _change(request, team, run_id, name, retention.delete, message)


def _change(
    request: Request,
    team: str,
    run_id: int,
    name: str,
    change: Callable[..., None],
    message: str,
) -> HttpResponse:
    checkpoint = _checkpoint(get_writable_team(request, team), run_id, name)
    try:
        change(checkpoint=checkpoint, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, message)
    return redirect("run_checkpoints", team, run_id)


@require_POST
def run_best_by(request: Request, team: str, run_id: int) -> HttpResponse:
    run = get_writable_run(request, team, run_id)
    metric, base = request.POST.get("metric"), request.POST.get(BASE, "")
    try:
        if metric is not None:
            retention.choose_best_by(
                run=run, metric=metric, user=request.user, base=base
            )
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=run.name,
            back=reverse("run_checkpoints", args=[team, run.pk]),
            labels={"metric": "Best by"},
            choices={"metric": {"": "held-out score, else reward"}},
            team=run.team,
            saved=last_entry(run.team, run, "run.best_by_changed"),
        )
    except ValueError as error:
        messages.error(request, str(error))
    return redirect("run_checkpoints", team, run.pk)


# Models: downloaded, and published for new runs.


@require_GET
def checkpoint_download(
    request: Request, team: str, run_id: int, name: str
) -> HttpResponseBase:
    """Send the model's folder with weights, tokenizer and config as a tar file."""
    checkpoint = _checkpoint(get_team(request, team), run_id, name)
    try:
        archive = archive_model(checkpoint)
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("run_checkpoints", team, run_id)
    return attach(
        archive,
        filename=archive.filename,
        content_type="application/x-tar",
        Content_Length=str(len(archive)),
    )


@require_POST
def checkpoint_publish(
    request: Request, team: str, run_id: int, name: str
) -> HttpResponse:
    checkpoint = _checkpoint(get_writable_team(request, team), run_id, name)
    called = request.POST.get("name", "")
    try:
        model = publish(checkpoint=checkpoint, name=called, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(
            request, f"Published {model}. New runs and probes can start from it."
        )
    return redirect("run_checkpoints", team, run_id)


@require_safe
def models(request: Request, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    listed = team_.published_models.select_related("published_by", "run")
    needs = needs_of(team_)
    context = {
        "team": team_,
        "listed": [
            (model, needs.get(folder_of(model), [])) for model in listed.order_by("-pk")
        ],
    }
    return render(request, "supervision/models.html", context)


@require_POST
def model_unpublish(request: Request, team: str, model_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    model = get_object_or_404(team_.published_models, pk=model_id)
    try:
        unpublish(model=model, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"Unpublished {model}.")
    return redirect("models", team)


def _checkpoint(team: Team, run_id: int, name: str) -> Checkpoint:
    run = get_run(team, run_id)
    checkpoints_ = run.checkpoints.select_related("run__team")
    return get_object_or_404(checkpoints_, name=name)
