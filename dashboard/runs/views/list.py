from __future__ import annotations

from collections.abc import Iterable
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
from dashboard.runs.models import Run, RunGroup, RunState
from dashboard.runs.queue.line import Line, read_line
from dashboard.runs.queue.sentences import say_short

PAGE_SIZE = 50


@require_safe
def runs(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_team(request, team)
    query = ListQuery.read(request.GET)
    pages = Paginator(list_runs(team_, query), PAGE_SIZE)
    page = pages.get_page(request.GET.get("page"))
    groups = RunGroup.objects.filter(team=team_, pk=query.group or 0)
    context = {
        "team": team_,
        "group": groups.first() if query.group else None,
        "page": page,
        "rows": _rows(page),
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
    rows = {row["run"].pk: row["live"] for row in _rows(runs_shown.defer("config"))}
    return JsonResponse({"total": total, "rows": rows})


def _rows(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Four queries more when one of them is queued."""
    found = list(runs)
    waits = any(run.state == RunState.QUEUED for run in found)
    line = read_line() if waits else Line()
    return [_row(run, line) for run in found]


def _row(run: Run, line: Line) -> dict[str, Any]:
    place = line.places.get(run.pk) if run.state == RunState.QUEUED else None
    return {
        "run": run,
        "live": {
            "state": run.state,
            "place": say_short(place, line) if place else "",
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
