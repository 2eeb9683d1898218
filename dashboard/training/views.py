from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_managed_team, get_membership_for
from dashboard.accounts.models import User
from dashboard.rewards.trial import sandbox_here
from dashboard.runs.models import Run
from dashboard.training.lease import drain, undrain
from dashboard.training.models import Worker
from dashboard.training.worker_hosts import count_workers, describe_workers
from dashboard.training.workers import GONE_AFTER

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
