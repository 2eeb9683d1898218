from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_team
from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queue.forecast import Start
from dashboard.runs.queue.line import Line, Place, read_line
from dashboard.runs.queue.sentences import short_start
from dashboard.runs.queue_changes import (
    MOVES,
    hold_run,
    move_run,
    release_run,
    set_priority,
)
from dashboard.runs.views.control import asked_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the page: a run of this team, after some of other teams."""

    run: Run
    place: Place
    num_foreign: int  # between it and this team's run before it
    start: str
    can_rise: bool
    can_sink: bool


@require_safe
def queue(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    line = read_line()
    entries = _entries(team_, line)
    num_passed = sum(entry.num_foreign for entry in entries)
    own = sum(entry.place.number is not None for entry in entries)
    context = {
        "team": team_,
        "line": line,
        "entries": entries,
        "num_foreign_after": line.num_startable - own - num_passed,
        "priorities": Priority,
    }
    return render(request, "runs/queue.html", context)


def _entries(team: Team, line: Line) -> list[Entry]:
    """The team's own order, which a hold does not change; one query."""
    queued = Run.objects.filter(team=team, id__in=line.places).select_related("owner")
    runs = [
        (run, line.places[run.id])
        for run in queued.defer("config", "summary", "metric_names")
    ]
    runs.sort(key=lambda pair: pair[1].waiting.rank)
    of_priority = [place.waiting.priority for _, place in runs]
    entries, passed = [], 0
    for at, (run, place) in enumerate(runs):
        num_foreign = max(0, place.num_foreign_before - passed) if place.number else 0
        passed += num_foreign
        entries.append(
            Entry(
                run=run,
                place=place,
                num_foreign=num_foreign,
                start=_say_start(place.start),
                can_rise=at > 0 and of_priority[at - 1] == of_priority[at],
                can_sink=of_priority[at + 1 : at + 2] == of_priority[at : at + 1],
            )
        )
    return entries


def _say_start(start: Start) -> str:
    if start.seconds is None:
        return "Start not known"
    return "Starts now" if not start.seconds else f"Starts in {short_start(start)}"


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
    given = request.POST.get("priority", "")
    if given not in named:
        told = f"A priority is {', '.join(named)}; got {given[:40]!r}."
        messages.error(request, told)
    elif set_priority(run=run, user=user, priority=named[given]):
        messages.success(request, f"{run.name} has {given} priority.")
    return _back(request, run)


def _back(request: HttpRequest, run: Run) -> HttpResponse:
    """To the page that it was asked on: the queue, or the run's own."""
    if request.POST.get("from") == "queue":
        return redirect("queue", run.team.slug)
    return redirect("run", run.team.slug, run.id)


def _not_done(run: Run, what: str) -> str:
    run.refresh_from_db(fields=["state"])
    if run.state != RunState.QUEUED:
        return f"{what}: the run is {run.state}."
    return f"{what}: somebody may have changed the queue meanwhile."
