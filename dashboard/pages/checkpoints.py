"""A run's checkpoints, and published models."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import get_membership, get_writing_membership, look_up
from dashboard.accounts.models import Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request, report_refusal
from dashboard.runs.checkpoints import retention
from dashboard.runs.checkpoints.listing import (
    list_checkpoints,
    next_checkpoint,
    score_models,
)
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint, Run
from dashboard.runs.queries import get_run
from dashboard.supervision.publishing import archive_model, publish, unpublish
from dashboard.web.downloads import attach
from dashboard.web.edits import BASE, EditConflict, show_conflict


@require_GET
@look_up(get_membership, run=get_run)
def checkpoints(request: Request, team: Team, run: Run) -> HttpResponse:
    listing = list_checkpoints(run)
    context = {
        "team": team,
        "run": run,
        "tab": "checkpoints",
        "listing": listing,
        "next": next_checkpoint(run, listing),
        "unseen": "" if listing.is_seen else retention.unseen(run),
        "published": run.published_models.order_by("-pk"),
    }
    return render(request, "runs/checkpoints.html", context)


@require_POST
@look_up(get_writing_membership, run=get_run)
def checkpoint_pin(request: Request, run: Run, name: str) -> HttpResponse:
    message = f"Pinned {name}. Cohort keeps it until you unpin it."
    return _change(request, run, name, retention.pin, message)


@require_POST
@look_up(get_writing_membership, run=get_run)
def checkpoint_unpin(request: Request, run: Run, name: str) -> HttpResponse:
    return _change(request, run, name, retention.unpin, f"Unpinned {name}.")


@require_POST
@look_up(get_writing_membership, run=get_run)
def checkpoint_delete(request: Request, run: Run, name: str) -> HttpResponse:
    return _change(request, run, name, retention.delete, f"Deleted {name}.")


def _change(
    request: Request, run: Run, name: str, change: Callable[..., None], message: str
) -> HttpResponse:
    checkpoint = _get_checkpoint(run, name)
    with report_refusal(request):
        change(checkpoint=checkpoint, user=request.user)
        messages.success(request, message)
    return redirect("run_checkpoints", run.team.slug, run.pk)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_best_by(request: Request, run: Run) -> HttpResponse:
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
            back=reverse("run_checkpoints", args=[run.team.slug, run.pk]),
            labels={"metric": "Best by"},
            choices={"metric": {"": "held-out score, else reward"}},
            team=run.team,
            saved=last_entry(run.team, run, "run.best_by_changed"),
        )
    except ValueError as error:
        messages.error(request, str(error))
    return redirect("run_checkpoints", run.team.slug, run.pk)


# Models: downloaded, and published for new runs.


@require_GET
@look_up(get_membership, run=get_run)
def checkpoint_download(request: Request, run: Run, name: str) -> HttpResponseBase:
    """Send the model's folder with weights, tokenizer and config as a tar file."""
    try:
        archive = archive_model(_get_checkpoint(run, name))
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("run_checkpoints", run.team.slug, run.pk)
    return attach(
        archive,
        filename=archive.filename,
        content_type="application/x-tar",
        Content_Length=str(len(archive)),
    )


@require_POST
@look_up(get_writing_membership, run=get_run)
def checkpoint_publish(request: Request, run: Run, name: str) -> HttpResponse:
    checkpoint = _get_checkpoint(run, name)
    called = request.POST.get("name", "")
    with report_refusal(request):
        model = publish(checkpoint=checkpoint, name=called, user=request.user)
        messages.success(
            request, f"Published {model}. New runs and tests can start from it."
        )
    return redirect("run_checkpoints", run.team.slug, run.pk)


@require_safe
@look_up(get_membership)
def models(request: Request, team: Team) -> HttpResponse:
    published = team.published_models.select_related("published_by", "run")
    listed = list(published.order_by("-pk"))
    needs, scores = needs_of(team), score_models(listed)
    kept = Checkpoint.objects.filter(run__team=team, deleted_at=None)
    names = dict(kept.values_list("sha256", "name"))
    context = {
        "team": team,
        "listed": [
            {
                "model": model,
                "needed": needs.get(folder_of(model), []),
                "score": scores.get(model.pk),
                "checkpoint": model.run and names.get(model.sha256),
            }
            for model in listed
        ],
    }
    return render(request, "supervision/models.html", context)


@require_POST
@look_up(get_writing_membership)
def model_unpublish(request: Request, team: Team, model_id: int) -> HttpResponse:
    model = get_object_or_404(team.published_models, pk=model_id)
    with report_refusal(request):
        unpublish(model=model, user=request.user)
        messages.success(request, f"Unpublished {model}.")
    return redirect("models", team.slug)


def _get_checkpoint(run: Run, name: str) -> Checkpoint:
    return get_object_or_404(run.checkpoints.select_related("run__team"), name=name)
