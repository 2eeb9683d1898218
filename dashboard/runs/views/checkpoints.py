"""What is asked of a checkpoint by hand: pin, unpin, delete."""

from __future__ import annotations

from typing import Protocol

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.models import User
from dashboard.project.edits import Edit, EditConflict, show_conflict
from dashboard.runs.checkpoints import retention
from dashboard.runs.models import Checkpoint
from dashboard.runs.views.control import asked_of


class Change(Protocol):
    def __call__(self, *, checkpoint: Checkpoint, user: User) -> None: ...


@require_POST
def checkpoint_pin(
    request: HttpRequest, team: str, run_id: int, name: str
) -> HttpResponse:
    said = f"{name} is pinned: it is never deleted."
    return _change(request, team, run_id, name, retention.pin, said)


@require_POST
def checkpoint_unpin(
    request: HttpRequest, team: str, run_id: int, name: str
) -> HttpResponse:
    said = f"{name} is left to the rules again."
    return _change(request, team, run_id, name, retention.unpin, said)


@require_POST
def checkpoint_delete(
    request: HttpRequest, team: str, run_id: int, name: str
) -> HttpResponse:
    said = f"{name} was deleted."
    return _change(request, team, run_id, name, retention.delete, said)


def _change(
    request: HttpRequest, team: str, run_id: int, name: str, change: Change, said: str
) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    checkpoint = get_object_or_404(run.checkpoints, name=name)
    try:
        change(checkpoint=checkpoint, user=user)
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, said)
    return redirect("run_tab", team, run.pk, "checkpoints")


@require_POST
def run_best_by(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    edit = Edit.read(request.POST, ["metric"])
    was = edit.was.get("metric")
    try:
        if "metric" in edit.given:
            metric = edit.given["metric"]
            retention.choose_best_by(run=run, metric=metric, user=user, was=was)
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=run.name,
            back=reverse("run_tab", args=[team, run.pk, "checkpoints"]),
            labels={"metric": "Keep the best by"},
            choices={"metric": {"": "the held-out score, else the reward"}},
            team=run.team,
        )
    except ValueError as error:
        messages.error(request, str(error))
    return redirect("run_tab", team, run.pk, "checkpoints")
