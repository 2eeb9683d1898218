from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import (
    get_managed_team,
    get_membership_for,
    get_team,
    get_writable_team,
)
from dashboard.accounts.models import Team, User
from dashboard.pages.run_control import asked_of
from dashboard.project.downloads import Streamed
from dashboard.project.edits import Edit, EditConflict, show_conflict
from dashboard.rewards.trial import sandbox_here
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint, Priority, Run, RunState
from dashboard.runs.queries import get_run
from dashboard.runs.queue.changes import (
    MOVES,
    hold_run,
    move_run,
    release_run,
    set_priority,
    team_line,
)
from dashboard.runs.queue.order import read_line
from dashboard.training.lease import drain, undrain
from dashboard.training.models import Worker
from dashboard.training.publishing import archive_model, publish, unpublish
from dashboard.training.worker_hosts import count_workers, describe_workers
from dashboard.training.workers import GONE_AFTER


@require_safe
def queue(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    line = read_line()
    own = team_line(team_, line)
    context = {
        "team": team_,
        "line": line,
        "entries": own.entries,
        "num_foreign_after": own.num_foreign_after,
        "priorities": Priority,
    }
    return render(request, "runs/queue.html", context)


@require_POST
def run_move(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    where = request.POST.get("where", "")
    if where not in MOVES:
        messages.error(request, f"A run moves to the front, up or down; got {where!r}.")
    elif not move_run(run=run, user=user, where=where):
        messages.info(request, _not_done(run, f"{run.name} stays where it is"))
    else:
        moved = "to the front" if where == "front" else where
        messages.success(request, f"{run.name} moved {moved}.")
    return redirect("queue", run.team.slug)


@require_POST
def run_hold(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    if hold_run(run=run, user=user):
        messages.success(request, f"{run.name} is on hold.")
    else:
        messages.info(request, _not_done(run, f"{run.name} was not held"))
    return _back(request, run)


@require_POST
def run_release(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    if release_run(run=run, user=user):
        messages.success(request, f"{run.name} is in line again.")
    else:
        messages.info(request, _not_done(run, f"{run.name} was not on hold"))
    return _back(request, run)


@require_POST
def run_priority(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    named = {str(priority.label): priority for priority in Priority}
    edit = Edit.read(request.POST, ["priority"])
    if "priority" not in edit.given and "priority" in request.POST:
        return _back(request, run)  # the saved one is kept
    given, was = edit.given.get("priority", ""), edit.was.get("priority")
    if given not in named:
        told = f"A priority is {', '.join(named)}; got {given[:40]!r}."
        messages.error(request, told)
        return _back(request, run)
    try:
        is_set = set_priority(run=run, user=user, priority=named[given], was=was)
    except EditConflict as conflict:
        return _show_both(request, run, conflict)
    if is_set:
        messages.success(request, f"{run.name} has {given} priority.")
    return _back(request, run)


def _show_both(request: HttpRequest, run: Run, conflict: EditConflict) -> HttpResponse:
    return show_conflict(
        request,
        conflict,
        what=run.name,
        back=_back(request, run).url,
        choices={"priority": {}},
        team=run.team,
    )


def _back(request: HttpRequest, run: Run) -> HttpResponseRedirect:
    """To the page that it was asked on: the queue, or the run's own."""
    if request.POST.get("from") == "queue":
        return redirect("queue", run.team.slug)
    return redirect("run", run.team.slug, run.id)


def _not_done(run: Run, what: str) -> str:
    run.refresh_from_db(fields=["state"])
    if run.state != RunState.QUEUED:
        return f"{what}: the run is {run.state}."
    return f"{what}: somebody may have changed the queue meanwhile."


# Models out of a run: downloaded, and published for new runs.


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


SHOWN_FOR = timedelta(days=7)


@require_safe
def workers(request: HttpRequest, team: str) -> HttpResponse:
    membership = get_membership_for(request, team)
    team_ = membership.team
    recent = Worker.objects.filter(last_seen__gt=Now() - SHOWN_FOR)
    cards = describe_workers(recent, team=team_)
    context = {
        "team": team_,
        "workers": cards,
        "count": count_workers(cards),
        "can_manage": membership.can_manage,
        "gone_after_seconds": int(GONE_AFTER.total_seconds()),
        "sandbox": sandbox_here(),
        "num_queued": Run.objects.filter(team=team_, state="queued").count(),
    }
    return render(request, "training/workers.html", context)


@require_POST
def worker_drain(request: HttpRequest, team: str, worker_id: int) -> HttpResponse:
    team_ = get_managed_team(request, team)
    worker = get_object_or_404(Worker, id=worker_id)
    assert isinstance(request.user, User)
    if drain(worker, team=team_, user=request.user):
        said = f"{worker} finishes what it runs and takes nothing new."
    else:
        said = f"{worker} is drained already."
    messages.success(request, said)
    return redirect("workers", team=team_.slug)


@require_POST
def worker_undrain(request: HttpRequest, team: str, worker_id: int) -> HttpResponse:
    team_ = get_managed_team(request, team)
    worker = get_object_or_404(Worker, id=worker_id)
    assert isinstance(request.user, User)
    if undrain(worker, team=team_, user=request.user):
        said = f"{worker} takes runs again, within 5 s."
    else:
        said = f"{worker} is not drained."
    messages.success(request, said)
    return redirect("workers", team=team_.slug)
