from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import User
from dashboard.runs.queries import get_run
from dashboard.runs.services import request_pause, request_stop, resume_run


@require_POST
def run_stop(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    assert isinstance(request.user, User)
    if not request_stop(run=run, user=request.user):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to stop: the run is {run.state}.")
    return redirect("run", team_.slug, run.id)


@require_POST
def run_pause(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    assert isinstance(request.user, User)
    if not request_pause(run=run, user=request.user):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to pause: the run is {run.state}.")
    return redirect("run", team_.slug, run.id)


class ResumeForm(forms.Form):
    max_error_share = forms.FloatField(required=False, min_value=0, max_value=1)


@require_POST
def run_resume(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    assert isinstance(request.user, User)
    form = ResumeForm(request.POST)
    if not form.is_valid():
        given = request.POST.get("max_error_share", "")[:40]
        messages.error(
            request,
            f"Errors allowed must be a share from 0 to 1; got {given!r}. The run was "
            "not resumed.",
        )
    elif not resume_run(
        run=run,
        user=request.user,
        max_error_share=form.cleaned_data["max_error_share"],
    ):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to resume: the run is {run.state}.")
    return redirect("run", team_.slug, run.id)
