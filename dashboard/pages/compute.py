"""Compute: the workers, and the team's runs that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.contrib import messages
from django.db.models.functions import Now
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
    may_manage_workers,
    require_workers,
)
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import last_entry
from dashboard.pages.requests import Request, redirect_with
from dashboard.rewards.trial import sandbox_here
from dashboard.runs.models import Priority, Run, RunState
from dashboard.runs.queries import get_run
from dashboard.runs.queue.changes import (
    hold_run,
    release_run,
    set_priority,
    team_queue,
)
from dashboard.runs.queue.order import read_queue
from dashboard.runs.table.sql import join_or
from dashboard.supervision.lease import drain, undrain
from dashboard.supervision.models import Worker
from dashboard.supervision.worker_hosts import count_workers, describe_workers
from dashboard.supervision.workers import GONE_AFTER
from dashboard.web.edits import BASE, EditConflict, show_conflict

SHOWN_FOR = timedelta(days=7)  # after a worker was last seen


@require_safe
@look_up(get_membership)
def compute(request: Request, membership: Membership, team: Team) -> HttpResponse:
    current = read_queue()
    own = team_queue(team, current)
    recent = Worker.objects.filter(last_seen__gt=Now() - SHOWN_FOR)
    cards = describe_workers(recent, team=team)
    context = {
        "team": team,
        "workers": [card for card in cards if card.is_there],
        "former": [card for card in cards if not card.is_there],
        "count": count_workers(cards),
        "can_manage": may_manage_workers(membership),
        "gone_after_seconds": int(GONE_AFTER.total_seconds()),
        "sandbox": sandbox_here(),
        "queue": current,
        "entries": own.entries,
        "num_foreign_after": own.num_foreign_after,
        "priorities": Priority,
    }
    return render(request, "supervision/compute.html", context)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_hold(request: Request, run: Run) -> HttpResponse:
    if hold_run(run=run, user=request.user):
        messages.success(request, f"{run.name} is on hold.")
    else:
        messages.info(request, _not_done(run, f"{run.name} was not put on hold"))
    return _back(request, run)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_release(request: Request, run: Run) -> HttpResponse:
    if release_run(run=run, user=request.user):
        messages.success(request, f"{run.name} is released.")
    else:
        messages.info(request, _not_done(run, f"{run.name} was not released"))
    return _back(request, run)


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_priority(request: Request, run: Run) -> HttpResponse:
    named = {str(priority.label): priority for priority in Priority}
    label = request.POST.get("priority", "")
    if label not in named:
        problem = f"Priority must be {join_or([*named])}; got {label[:40]!r}."
        messages.error(request, problem)
        return _back(request, run)
    try:
        is_set = set_priority(
            run=run,
            user=request.user,
            priority=named[label],
            base=request.POST.get(BASE, ""),
        )
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=run.name,
            back=_back(request, run).url,
            choices={"priority": {}},
            team=run.team,
            saved=last_entry(run.team, run, "run.priority_changed"),
        )
    if is_set:
        messages.success(request, f"{run.name} now has {label} priority.")
    return _back(request, run)


def _back(request: Request, run: Run) -> HttpResponseRedirect:
    """Return to the page that sent the request: Compute, or the run's."""
    if request.POST.get("from") in ("compute", "queue"):
        return redirect("compute", run.team.slug)
    return redirect("run", run.team.slug, run.id)


def _not_done(run: Run, what: str) -> str:
    run.refresh_from_db(fields=["state"])
    if run.state != RunState.QUEUED:
        return f"{what}: the run is {run.state}."
    return f"{what}: the queue may have changed."


@require_POST
@look_up(get_membership)
def worker_drain(
    request: Request, membership: Membership, worker_id: int
) -> HttpResponse:
    values = ("finishes its runs and takes no new ones", "already takes no new runs")
    return _change(request, membership, worker_id, drain, values)


@require_POST
@look_up(get_membership)
def worker_undrain(
    request: Request, membership: Membership, worker_id: int
) -> HttpResponse:
    values = ("takes runs again within 5 s", "already takes runs")
    return _change(request, membership, worker_id, undrain, values)


def _change(
    request: Request,
    membership: Membership,
    worker_id: int,
    change: Callable[..., bool],
    texts: tuple[str, str],
) -> HttpResponse:
    """`texts`: for a change, and for none."""
    require_workers(membership)
    worker = get_object_or_404(Worker, id=worker_id)
    is_done = change(worker, team=membership.team, user=request.user)
    return redirect_with(
        request,
        f"{worker} {texts[0] if is_done else texts[1]}.",
        "compute",
        membership.team.slug,
    )
