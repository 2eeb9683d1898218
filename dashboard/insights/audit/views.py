from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.insights.audit.changes import Window
from dashboard.insights.audit.examples import draw_examples
from dashboard.insights.audit.figures import draw
from dashboard.insights.audit.findings import audit
from dashboard.insights.audit.forms import AuditForm
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.models import Group


@require_safe
def run_audit(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    """?at= and ?width= say what is compared with what."""
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = AuditForm.read(request.GET)
    found = audit(run, at=form.value("at"), width=form.value("width"))
    figures = {each.signal.key: draw(each) for each in found.findings}
    context = {
        "team": team_,
        "run": run,
        "tab": "audit",
        "form": form,
        "audit": found,
        "figures": {key: figure for key, figure in figures.items() if figure},
    }
    return render(request, "insights/audit.html", context)


@require_safe
def run_audit_examples(
    request: HttpRequest, team: str, run_id: int, signal: str
) -> HttpResponse:
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = AuditForm.read(request.GET)
    found = audit(run, at=form.value("at"), width=form.value("width"))
    finding = found.find(signal)
    if finding is None or finding.change is None:
        raise Http404(f"The audit of run {run.pk} compares nothing as {signal!r}.")
    change = finding.change
    context = {
        "team": team_,
        "run": run,
        "tab": "audit",
        "finding": finding,
        "sides": [
            _side("Before", run, change.before),
            _side("After", run, change.after),
        ],
    }
    return render(request, "insights/audit_examples.html", context)


def _side(title: str, run: Run, window: Window) -> dict[str, Any]:
    groups = Group.objects.current().filter(
        run=run, step__gte=window.first, step__lte=window.last
    )
    return {
        "title": title,
        "window": window,
        "completions": draw_examples(run, window),
        "num_groups": groups.count(),
    }
