from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.runs.launch.sections import describe_sweep
from dashboard.runs.views.launch import read_form


@require_POST
def run_new_plan(request: HttpRequest, team: str) -> HttpResponse:
    """The runs that the form, as it stands, would launch; changes nothing."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    form.check()
    context = describe_sweep(request.POST, form)
    context |= {"form": form, "is_live": True}
    return render(request, "runs/launch_plan.html", context)
