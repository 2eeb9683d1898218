"""Is everything well? The operators' page about the server, and its runbook."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.help.pages import parse_document, render_document
from dashboard.upkeep.overview.rows import rows_of_report
from dashboard.upkeep.overview.runs import (
    held_runs,
    rows_of_ingest,
    rows_of_queue,
    rows_of_workers,
)
from dashboard.upkeep.overview.server import (
    rows_of_backups,
    rows_of_database,
    rows_of_sockets,
)
from dashboard.upkeep.readiness.report import read_report

RUNBOOK = Path(__file__).parents[1] / "RUNBOOK.md"


@never_cache
@require_safe
def server(request: HttpRequest) -> HttpResponse:
    report = async_to_sync(read_report)()
    held = held_runs()
    sections = [
        rows_of_report(report),
        rows_of_workers(held),
        rows_of_queue(),
        rows_of_ingest(held),
        rows_of_sockets(),
        rows_of_database(),
        rows_of_backups(),
    ]
    context = {
        "sections": sections,
        "num_bad": sum(section.num_bad for section in sections),
    }
    return render(request, "upkeep/server.html", context)


@require_safe
def runbook(request: HttpRequest) -> HttpResponse:
    return render(request, "upkeep/runbook.html", {"text": runbook_as_html()})


@cache
def runbook_as_html() -> SafeString:
    """Headings bear the addresses that rows and alert rules name."""
    tokens = parse_document(RUNBOOK.read_text(encoding="utf-8"))
    return render_document(tokens, folder=RUNBOOK.parent)
