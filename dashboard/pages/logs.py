"""A run's logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Team
from dashboard.pages.requests import Request, read_id
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.supervision.log_reading import read_part, read_whole_line
from dashboard.supervision.log_search import (
    SOURCES,
    Source,
    find_source,
    make_pattern,
    pieces_of,
    search,
)
from dashboard.web.downloads import Streamed, attach

MAX_DIGITS = 15


@require_safe
@look_up(get_membership, run=get_run)
def run_logs(request: Request, team: Team, run: Run) -> HttpResponse:
    source = find_source(run, request.GET)
    context = {
        "team": team,
        "run": run,
        "tab": "logs",
        "attempts": run.attempts.order_by("number"),
        "source": source,
        "sources": SOURCES,
        "ranks": list(source.files.rank_logs) if source else [],
    }
    return render(request, "supervision/logs.html", context)


@require_safe
@look_up(get_membership, run=get_run)
def log_part(request: Request, run: Run) -> JsonResponse:
    """?after=<byte> or ?before=<byte> with &mark=, ?line=, or the end."""
    return _respond(request, run, _read_part)


@require_safe
@look_up(get_membership, run=get_run)
def log_line(request: Request, run: Run) -> JsonResponse:
    """?at=<byte>: the whole line that begins there."""
    return _respond(
        request,
        run,
        lambda request, source: asdict(
            read_whole_line(source.path, _number(request, "at") or 0)
        ),
    )


@require_safe
@look_up(get_membership, run=get_run)
def log_search(request: Request, run: Run) -> JsonResponse:
    """?q=&regex=1&case=1&first=<of the matches to list>"""
    return _respond(request, run, _search)


@require_safe
@look_up(get_membership, run=get_run)
def download_log(request: Request, run: Run) -> Streamed:
    source = find_source(run, request.GET)
    if source is None or not source.path.is_file():
        raise Http404("This log is empty so far.")
    name = f"run-{run.id}-attempt-{source.attempt.number}-{source.name}.log"
    return attach(
        pieces_of(source), filename=name, content_type="text/plain; charset=utf-8"
    )


def _respond(
    request: Request,
    run: Run,
    read: Callable[[Request, Source], dict[str, Any]],
) -> JsonResponse:
    source = find_source(run, request.GET)
    if source is None:
        raise Http404("No logs yet: no worker has started this run.")
    try:
        return JsonResponse(read(request, source))
    except FileNotFoundError:
        return JsonResponse({"error": source.missing}, status=404)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)


def _read_part(request: Request, source: Source) -> dict[str, Any]:
    part = read_part(
        source.path,
        after=_number(request, "after"),
        before=_number(request, "before"),
        line=_number(request, "line"),
        mark=request.GET.get("mark", ""),
    )
    newer = source.attempt.run.attempts.filter(number__gt=source.attempt.number)
    fields = asdict(part)
    for line, time in zip(fields["lines"], source.times_of(part.lines), strict=True):
        line["time"] = time
    return {
        **fields,
        "missing": source.missing,
        "is_closed": source.attempt.ended_at is not None,
        "is_last_attempt": not newer.exists(),
    }


def _search(request: Request, source: Source) -> dict[str, Any]:
    pattern = make_pattern(
        request.GET.get("q", ""),
        is_pattern=request.GET.get("regex") == "1",
        ignore_case=request.GET.get("case") != "1",
    )
    first = _number(request, "first") or 0
    return asdict(search(source.path, pattern, first=first))


def _number(request: Request, name: str) -> int | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    number = read_id(text) if len(text) <= MAX_DIGITS else None
    if number is None:
        raise ValueError(f"{name} must be an integer; got {text[:40]!r}.")
    return number
