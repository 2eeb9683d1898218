"""Models out of a run: downloaded, and published for new runs."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.project.downloads import Streamed
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint
from dashboard.runs.queries import get_run
from dashboard.training.publishing import archive_model, publish, unpublish


@require_GET
def checkpoint_download(
    request: HttpRequest, team: str, run_id: int, name: str
) -> HttpResponseBase:
    """The model's folder with weights, tokenizer and config, for anybody's programs."""
    checkpoint = _checkpoint(get_team(request, team), run_id, name)
    try:
        archive = archive_model(checkpoint)
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("run_tab", team, run_id, "checkpoints")
    disposition = content_disposition_header(True, archive.filename)
    return Streamed(
        archive,
        content_type="application/x-tar",
        headers={
            "Content-Disposition": disposition or "attachment",
            "Content-Length": str(len(archive)),
        },
    )


@require_POST
def checkpoint_publish(
    request: HttpRequest, team: str, run_id: int, name: str
) -> HttpResponse:
    checkpoint = _checkpoint(get_writable_team(request, team), run_id, name)
    assert isinstance(request.user, User)
    called = request.POST.get("name", "")
    try:
        model = publish(checkpoint=checkpoint, name=called, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(
            request, f"{model} is published: new runs and probes can start from it."
        )
    return redirect("run_tab", team, run_id, "checkpoints")


@require_safe
def models(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    listed = team_.published_models.select_related("published_by", "run")
    needs = needs_of(team_)
    context = {
        "team": team_,
        "listed": [
            (each, needs.get(folder_of(each), [])) for each in listed.order_by("-pk")
        ],
    }
    return render(request, "training/models.html", context)


@require_POST
def model_unpublish(request: HttpRequest, team: str, model_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    model = get_object_or_404(team_.published_models, pk=model_id)
    assert isinstance(request.user, User)
    try:
        unpublish(model=model, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{model} is no longer published.")
    return redirect("models", team)


def _checkpoint(team: Team, run_id: int, name: str) -> Checkpoint:
    run = get_run(team, run_id)
    found = run.checkpoints.select_related("run__team")
    return get_object_or_404(found, name=name)
