from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for
from dashboard.accounts.models import User
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.annotations import read_marks, suggest_tags
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.rewards import rule_names
from dashboard.samples.search.annotated import Mark, read_all_marks
from dashboard.samples.search.blocks import BlocksChanged
from dashboard.samples.search.columns import compares_answers
from dashboard.samples.search.facets import Facet, Facets
from dashboard.samples.search.results import TEXT_SECONDS, Found, find

ATTEMPTS = 3


@require_safe
def completions(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    form = CompletionFilterForm.of_rules(request.GET, rule_names(run))
    is_mine = form.value("by") == "me"
    all_marks = read_all_marks(run, by=membership.user if is_mine else None)
    found, facets = _find(request, run, form, membership.user, all_marks)
    marks = read_marks({c.group_id for c in found.completions}, membership.user)
    context = {
        "team": membership.team,
        "run": run,
        "tab": "completions",
        "form": form,
        "page": found,
        "completions": [
            (c, marks.get((c.group_id, c.position)), marks.get((c.group_id, None)))
            for c in found.completions
        ],
        "facets": facets,
        "text_seconds": TEXT_SECONDS,
        "has_answer_rules": compares_answers(run),
        "team_tags": suggest_tags(membership.team),
        "has_marks": bool(all_marks) or is_mine,
    }
    return render(request, "samples/completions.html", context)


def _find(
    request: HttpRequest,
    run: Run,
    form: CompletionFilterForm,
    reader: User,
    marks: Sequence[Mark],
) -> tuple[Found, list[Facet]]:
    for attempt in range(ATTEMPTS):
        try:
            found = find(run, form, reader)
            return found, Facets(found.selections, request.GET).all(marks)
        except BlocksChanged:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt has raised")
