from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.accounts.templatetags.numbers import duration, sig4
from dashboard.runs.listing import (
    ACTIVE,
    COLUMNS,
    ListQuery,
    elapsed,
    list_runs,
    read_facets,
)
from dashboard.runs.models import Run, RunState

PAGE_SIZE = 50


@require_safe
def runs(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    query = ListQuery.read(request.GET)
    pages = Paginator(list_runs(team_, query), PAGE_SIZE)
    page = pages.get_page(request.GET.get("page"))
    context = {
        "team": team_,
        "page": page,
        "rows": [_row(run) for run in page],
        "query": query,
        "facets": read_facets(team_),
        "states": [ACTIVE, *RunState.values],
        "headers": [_header(column, query.sort) for column in COLUMNS],
    }
    return render(request, "runs/list.html", context)


@require_safe
def runs_live(request: HttpRequest, team: str) -> JsonResponse:
    """What changes in the rows on the screen, and how many runs there are now."""
    team_ = get_team(request, team)
    parts = request.GET.get("ids", "").split(",")
    shown = [part for part in parts if part.isdecimal() and len(part) < 19]
    runs_shown = Run.objects.filter(team=team_, pk__in=shown[:PAGE_SIZE])
    total = ListQuery.read(request.GET).filter(Run.objects.filter(team=team_)).count()
    rows = {run.pk: _row(run)["live"] for run in runs_shown.defer("config")}
    return JsonResponse({"total": total, "rows": rows})


def _row(run: Run) -> dict[str, Any]:
    return {
        "run": run,
        "live": {
            "state": run.state,
            "step": run.last_step,
            "progress": f"{run.last_step:,} of {run.num_steps:,}",
            "last": sig4(run.reward("last")),
            "best": sig4(run.reward("best")),
            "duration": duration(elapsed(run)),
        },
    }


def _header(column: Any, sort: str) -> dict[str, Any]:
    """A click sorts numbers from the top, words from A; a second click turns it."""
    first = f"-{column.key}" if column.is_number else column.key
    second = column.key if column.is_number else f"-{column.key}"
    directions = {column.key: "ascending", f"-{column.key}": "descending"}
    return {
        "column": column,
        "next": second if sort == first else first,
        "direction": directions.get(sort),
    }
