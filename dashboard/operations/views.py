"""The operators' pages about the server, and what programs read: health and metrics."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.crypto import constant_time_compare
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from dashboard.help.pages import parse_document, render_document
from dashboard.observability.requests import is_of_this_machine
from dashboard.operations.health_checks import read_report
from dashboard.operations.metrics import exposition
from dashboard.operations.overview import read_sections

RUNBOOK = Path(__file__).parent / "RUNBOOK.md"
REFUSAL = (
    "Only programs on the server can read this. To read it from elsewhere, set "
    "COHORT_METRICS_TOKEN and send it as “Authorization: Bearer …”.\n"
)


@never_cache
@require_safe
def server(request: HttpRequest) -> HttpResponse:
    sections = read_sections(async_to_sync(read_report)())
    context = {
        "sections": sections,
        "num_bad": sum(section.num_bad for section in sections),
    }
    return render(request, "operations/server.html", context)


@require_safe
def runbook(request: HttpRequest) -> HttpResponse:
    return render(request, "operations/runbook.html", {"text": runbook_as_html()})


@cache
def runbook_as_html() -> SafeString:
    """Headings bear the addresses that rows and alert rules name."""
    tokens = parse_document(RUNBOOK.read_text(encoding="utf-8"))
    return render_document(tokens, folder=RUNBOOK.parent)


# Read by programs.


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """This process is alive; /readyz says whether it can serve."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
@login_not_required
async def readyz(request: HttpRequest) -> JsonResponse:
    """Respond with 503 if pages could not be served whole; with the parts, to those who
    may see them.
    """
    report = await read_report()
    body: dict[str, object] = {"status": report.status}
    if may_see_server(request):
        body["parts"] = [part.as_json() for part in report.parts]
    return JsonResponse(body, status=200 if report.is_ready else 503)


@never_cache
@require_safe
@login_not_required
async def metrics(request: HttpRequest) -> HttpResponse:
    if not may_see_server(request):
        return HttpResponse(REFUSAL, status=403, content_type="text/plain")
    return HttpResponse(await exposition(), content_type=CONTENT_TYPE_LATEST)


def may_see_server(request: HttpRequest) -> bool:
    """Check a token. If one is set, everyone must send it:

    a proxy on this machine that hides its visitors could make them look local.
    """
    if settings.METRICS_TOKEN:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        is_right = constant_time_compare(token.strip(), settings.METRICS_TOKEN)
        return kind.lower() == "bearer" and is_right
    return is_of_this_machine(
        request.META.get("REMOTE_ADDR", ""),
        request.META.get("HTTP_HOST", ""),
        [name.lower() for name in request.headers],
    )
