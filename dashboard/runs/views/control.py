from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import User
from dashboard.runs.queries import get_run
from dashboard.runs.services import request_stop


@require_POST
def run_stop(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    run = get_run(team_, run_id)
    assert isinstance(request.user, User)
    if not request_stop(run=run, user=request.user):
        run.refresh_from_db(fields=["state"])
        messages.info(request, f"Nothing to stop: the run is {run.state}.")
    return redirect("run", team_.slug, run.id)
