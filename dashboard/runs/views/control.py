from __future__ import annotations

from typing import Protocol

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import User
from dashboard.runs.control import cancel_run, request_pause, request_stop, resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import get_run


class Ask(Protocol):
    def __call__(self, *, run: Run, user: User) -> bool: ...


def asked_of(request: HttpRequest, team: str, run_id: int) -> tuple[Run, User]:
    """A run that may be changed, and who asks."""
    assert isinstance(request.user, User)
    return get_run(get_writable_team(request, team), run_id), request.user


@require_POST
def run_stop(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    return _ask(request, team, run_id, request_stop, "stop")


@require_POST
def run_cancel(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    return _ask(request, team, run_id, cancel_run, "cancel")


@require_POST
def run_pause(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    return _ask(request, team, run_id, request_pause, "pause")


def _ask(
    request: HttpRequest, team: str, run_id: int, ask: Ask, verb: str
) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    if not ask(run=run, user=user):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to {verb}: the run is {run.state}.")
    return redirect("run", team, run.id)


class ResumeForm(forms.Form):
    max_error_share = forms.FloatField(required=False, min_value=0, max_value=1)
    epoch = forms.IntegerField(required=False)


@require_POST
def run_resume(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    run, user = asked_of(request, team, run_id)
    form = ResumeForm(request.POST)
    if not form.is_valid():
        messages.error(request, _refusal(request, form))
    elif not resume_run(
        run=run,
        user=user,
        max_error_share=form.cleaned_data["max_error_share"],
        seen_epoch=form.cleaned_data["epoch"],
    ):
        run.refresh_from_db(fields=["state", "last_step", "locked_at", "epoch"])
        messages.info(request, _not_resumed(run, form.cleaned_data["epoch"]))
    return redirect("run", team, run.id)


def _refusal(request: HttpRequest, form: ResumeForm) -> str:
    if "max_error_share" not in form.errors:
        return "The form was not complete. Press Resume on this page again."
    given = request.POST.get("max_error_share", "")[:40]
    return (
        f"Errors allowed must be a share from 0 to 1; got {given!r}. The run was not "
        "resumed."
    )


def _not_resumed(run: Run, seen_epoch: int | None) -> str:
    if run.state != RunState.PAUSED:
        return f"Nothing to resume: the run is {run.state}."
    if run.locked_at is not None and run.epoch == seen_epoch:
        return (
            "Not resumed: the run is locked, so its share of errors stays. Leave that "
            "as it is, or unlock the run."
        )
    return (
        "Not resumed: since your page was made somebody resumed the run, and it has "
        f"paused again, after step {run.last_step}. See why, and which share of errors "
        "is allowed now, then press Resume again."
    )
