from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.runs.launch.sections import change_sets, describe_sets
from dashboard.runs.views.launch import read_form


@require_POST
def run_new_sets(request: HttpRequest, team: str) -> HttpResponse:
    """The evaluation sets of the form with one more or less; without an action only
    what is said about them, so that nothing is swapped that is being typed."""
    team_ = get_writable_team(request, team)
    form = read_form(request, team_)
    action = request.POST.get("eval_action", "")
    change_sets(form, action)
    context = {
        "team": team_,
        "form": form,
        "section": describe_sets(form, action),
        "sets_url": reverse("run_new_sets", args=[team_.slug]),
    }
    template = "launch_sets" if action else "launch_sets_said"
    return render(request, f"runs/{template}.html", context)
