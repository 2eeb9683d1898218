from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.runs.queries import get_run
from dashboard.samples.forms import RewardLogForm
from dashboard.samples.groups import find_page
from dashboard.samples.rewards import rule_names
from dashboard.samples.rule_logs import find_notes, read_entries


@require_safe
def reward_log(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = RewardLogForm.of_rules(request.GET, rule_names(run))
    page = find_page(find_notes(run, form), form.value("page"))
    context = {
        "team": team_,
        "run": run,
        "tab": "reward-log",
        "form": form,
        "page": page,
        "entries": read_entries(run, page.ids),
    }
    return render(request, "samples/reward_log.html", context)
