"""The health of a run: its open alerts, and whether its reward is being hacked."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST, require_safe

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.alerts.forms import ANY, FilterForm, MuteForm
from dashboard.alerts.queries import (
    describe,
    describe_for_page,
    list_alerts,
    muted_until,
    rules_of,
)
from dashboard.alerts.services import mute_run
from dashboard.analysis.audit.changes import FEWEST_OF_RUN, Change, Window
from dashboard.analysis.audit.findings import (
    AuditForm,
    audit,
    draw,
    draw_examples,
    draw_pairs,
)
from dashboard.analysis.audit.jumps import Around, explain, explain_jump
from dashboard.completions.models import Completion, Group
from dashboard.pages.requests import Request
from dashboard.runs.headline import read_headline
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

PER_PAGE = 50


@require_safe
@look_up(get_membership, run=get_run)
def run_health(request: Request, team: Team, run: Run) -> HttpResponse:
    """?state= and ?rule= select past alerts."""
    context = {"team": team, "run": run, "tab": "health", "most_open": PER_PAGE}
    alerts = list_alerts(team).filter(run=run)
    form = FilterForm(request.GET, team=team, state=ANY)
    page = Paginator(form.narrow(alerts), PER_PAGE).get_page(request.GET.get("page"))
    # Those on screen are both where nothing is filtered.
    listed = list(page.object_list)
    is_whole = page.paginator.count <= PER_PAGE and not _is_narrowed(request)
    opened = [a for a in listed if a.is_open] if is_whole else alerts.open()[:PER_PAGE]
    context |= {
        "form": form,
        "page": page,
        "num_alerts": page.paginator.count if is_whole else alerts.count(),
        "opened": opened,
        "is_narrowed": _is_narrowed(request),
        "rules": [(rule, describe(rule)) for rule in rules_of(run)],
        "muted_until": muted_until(run),
        "mute_form": MuteForm(),
    }
    if request.headers.get("HX-Target") == "open-alerts":
        return render(request, "health/open_alerts.html", context)
    result = audit(run)
    figures = {finding.signal.key: draw(finding) for finding in result.findings}
    context |= {
        "audit": result,
        "verdict": result.verdict,
        "fewest": FEWEST_OF_RUN,
        "jump": _explain_jump(run),
        "figures": {key: figure for key, figure in figures.items() if figure},
    }
    return render(request, "health/health.html", context)


def _is_narrowed(request: Request) -> bool:
    return bool({"state", "rule", "page"} & set(request.GET))


@require_safe
@look_up(get_membership, run=get_run)
def run_health_examples(
    request: Request, team: Team, run: Run, signal: str
) -> HttpResponse:
    """Ten completions from before and after a change.

    Of a signal, of the verdict, or of the reward at ?at= or where it jumps.
    """
    around = finding = change = None
    at = AuditForm.read(request.GET).value("at")
    if signal == "reward":
        around = explain(run, at) if at else _explain_jump(run)
        change = around.change if around else None
    else:
        result = audit(run)
        finding, change = result.find(signal), result.change_of(signal)
    if change is None and not (signal == "reward" and at):
        raise Http404(f"The audit of run {run.pk} has no change of {signal!r}.")
    context = {
        "team": team,
        "run": run,
        "tab": "health",
        "signal": finding.signal if finding else None,
        "change": change,
        "around": around,
        **(_sides(run, change) if change else {"sides": []}),
    }
    return render(request, "health/examples.html", context)


def _explain_jump(run: Run) -> Around | None:
    return explain_jump(run, read_headline(run).reward)


def _sides(run: Run, change: Change) -> dict[str, Any]:
    """Choose the same prompts for both, if enough were sampled on both."""
    windows = change.before, change.after
    pairs = draw_pairs(run, *windows)
    drawn = pairs or tuple(draw_examples(run, window) for window in windows)
    sides = zip(("Before", "After"), windows, drawn, strict=True)
    return {
        "is_paired": pairs is not None,
        "sides": [_side(run, *side) for side in sides],
    }


def _side(
    run: Run, title: str, window: Window, completions: list[Completion]
) -> dict[str, Any]:
    groups = Group.objects.current().filter(
        run=run, step__gte=window.first, step__lte=window.last
    )
    return {
        "title": title,
        "window": window,
        "completions": completions,
        "num_groups": groups.count,  # counted where it is shown
    }


@require_GET
@look_up(get_membership, run=get_run)
def run_alerts_live(request: Request, run: Run) -> JsonResponse:
    """Return the alerts of the run's page, which asks when `alerts_seq` rises."""
    return JsonResponse({"seq": run.alerts_seq, "alerts": describe_for_page(run)})


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_alerts_mute(request: Request, team: Team, run: Run) -> HttpResponse:
    form = MuteForm(request.POST)
    if form.is_valid():
        mute_run(run=run, user=request.user, until=form.until)
    return redirect("run_health", team.slug, run.id)
