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
from dashboard.upkeep.health_checks import read_report
from dashboard.upkeep.overview import read_sections

RUNBOOK = Path(__file__).parents[1] / "RUNBOOK.md"


@never_cache
@require_safe
def server(request: HttpRequest) -> HttpResponse:
    sections = read_sections(async_to_sync(read_report)())
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
