from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.insights.differences import compare_settings
from dashboard.insights.figures import overlay
from dashboard.insights.forms import CompareForm
from dashboard.insights.marks import mark_runs
from dashboard.insights.metrics import list_metrics
from dashboard.insights.prompts import find_answers
from dashboard.insights.selection import (
    MAX_RUNS,
    Selection,
    list_choices,
    offer_runs,
    read_selection,
)
from dashboard.insights.series import read_series
from dashboard.insights.standings import compare_standings
from dashboard.runs.models import Run


@require_GET
def compare(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    selection = read_selection(team_, request.GET)
    form = CompareForm.read(request.GET)
    offered = offer_runs(team_, selection, form.value("q") or "")
    context = {
        "team": team_,
        "selection": selection,
        "max_runs": MAX_RUNS,
        "form": form,
        "view": {name: form.value(name) for name in form.fields},
        "choices": list_choices(team_, selection) if selection.choices else [],
        "offered": [(run, selection.with_run(run)) for run in offered],
        **(_compared(selection, form) if selection.runs else {}),
    }
    return render(request, "insights/compare.html", context)


@require_GET
def compare_figure(request: HttpRequest, team: str) -> HttpResponse:
    """The curves alone, for a page whose reader moves the smoothing slider."""
    selection = read_selection(get_team(request, team), request.GET)
    if not selection.runs:
        return JsonResponse({"data": [], "layout": {}})
    return JsonResponse(_figure(selection.runs, CompareForm.read(request.GET)))


def _compared(selection: Selection, form: CompareForm) -> dict[str, Any]:
    runs, prompt = selection.runs, form.value("prompt")
    standings = compare_standings(runs)
    settings = compare_settings(runs)
    differing = [setting for setting in settings if setting.differs]
    show_all = form.value("settings") == "all"
    return {
        "rows": _rows(selection, [column.figures for column in standings]),
        "columns": [column.title for column in standings],
        "metrics": list_metrics(runs, shown=form.value("metric")),
        "figure": _figure(runs, form),
        "settings": settings if show_all else differing,
        "num_settings": len(settings),
        "num_differing": len(differing),
        "answers": []
        if prompt is None
        else find_answers(runs, prompt, form.value("step")),
    }


def _rows(selection: Selection, columns: list[list[Any]]) -> list[dict[str, Any]]:
    marks = mark_runs(selection.ids)
    return [
        {
            "run": run,
            "mark": marks[run.pk],
            "figures": [column[i] for column in columns],
            "is_baseline": i == 0,
            "as_baseline": selection.with_baseline(run),
            "without": selection.without_run(run),
        }
        for i, run in enumerate(selection.runs)
    ]


def _figure(runs: list[Run], form: CompareForm) -> dict[str, Any]:
    metric, axis, smoothing = (form.value(name) for name in ("metric", "x", "smooth"))
    return overlay(
        runs,
        [read_series(run, metric, axis=axis, smoothing=smoothing) for run in runs],
        mark_runs(run.pk for run in runs),
        metric=metric,
        axis=axis,
        smoothing=smoothing,
        log_y=form.value("y") == "log",
    )
