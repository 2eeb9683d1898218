from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.queries import get_run
from dashboard.samples.completions import find_completions, read_completions
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.found import find_page


@require_safe
def completions(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = CompletionFilterForm.read(request.GET)
    page = find_page(find_completions(run, form), form.value("page"))
    context = {
        "team": team_,
        "run": run,
        "tab": "completions",
        "form": form,
        "page": page,
        "completions": read_completions(page.ids),
    }
    return render(request, "samples/completions.html", context)
