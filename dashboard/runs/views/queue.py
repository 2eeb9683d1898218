from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_team
from dashboard.project.edits import Edit, EditConflict, show_conflict
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queue.changes import (
    MOVES,
    hold_run,
    move_run,
    release_run,
    set_priority,
    team_line,
)
from dashboard.runs.queue.order import read_line
from dashboard.runs.views.control import asked_of


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
