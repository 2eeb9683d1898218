from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for
from dashboard.runs.queries import get_run
from dashboard.samples.annotations.queries import (
    has_marks,
    read_marks,
    suggest_tags,
)
from dashboard.samples.completions import find_completions, read_completions
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.found import find_page
from dashboard.samples.recipes import rule_names


@require_safe
def completions(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    form = CompletionFilterForm.of_rules(request.GET, rule_names(run))
    found = find_completions(run, form, membership.user)
    page = find_page(found, form.value("page"))
    completions = read_completions(page.ids)
    marks = read_marks({c.group_id for c in completions}, membership.user)
    context = {
        "team": membership.team,
        "run": run,
        "tab": "completions",
        "form": form,
        "page": page,
        "completions": [
            (c, marks.get((c.group_id, c.position)), marks.get((c.group_id, None)))
            for c in completions
        ],
        "team_tags": suggest_tags(membership.team),
        "has_marks": has_marks(run),
    }
    return render(request, "samples/completions.html", context)
