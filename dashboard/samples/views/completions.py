from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.queries import get_run
from dashboard.samples.completions import read_page
from dashboard.samples.forms import CompletionFilterForm


@require_safe
def completions(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = CompletionFilterForm.read(request.GET)
    context = {
        "team": team_,
        "run": run,
        "tab": "completions",
        "form": form,
        "filters": [field for field in form if field.name != "page"],
        "page": read_page(run, form),
    }
    return render(request, "samples/completions.html", context)
