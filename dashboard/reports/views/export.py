from __future__ import annotations

import re

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.reports.alone import render_alone
from dashboard.reports.hosts import own_hosts
from dashboard.reports.models import Report
from dashboard.reports.printing import TooBusy, print_report
from dashboard.reports.queries import get_report


@never_cache
@require_safe
def report_export(
    request: HttpRequest, team: str, report_id: int, file_kind: str
) -> HttpResponse:
    report = get_report(get_team(request, team), report_id)
    if file_kind not in ("html", "pdf"):
        raise Http404(f"A report is exported as html or pdf, not as {file_kind!r}.")
    try:
        return file_of(request, report, file_kind)
    except TooBusy:
        said = (
            "Other reports are being drawn. Ask for this one again in some seconds.\n"
        )
        return HttpResponse(said, status=503, content_type="text/plain")
    except ValueError as error:
        return HttpResponse(f"{error}\n", status=422, content_type="text/plain")


def file_of(request: HttpRequest, report: Report, file_kind: str) -> HttpResponse:
    """As html or pdf. TooBusy while others are drawn; ValueError where it cannot be."""
    if file_kind == "pdf":
        return _file(print_report(report), report, "pdf", "application/pdf")
    page = render_alone(report, without_hosts=own_hosts(request))
    return _file(page.encode(), report, "html", "text/html; charset=utf-8")


def _file(
    content: bytes, report: Report, ending: str, content_type: str
) -> HttpResponse:
    response = HttpResponse(content, content_type=content_type)
    name = f"{_file_name(report)}.{ending}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    # It is a file to keep, and acts as no page of ours where a browser shows it.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def _file_name(report: Report) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", report.title.lower()).strip("-")
    return words[:60] or f"report-{report.pk}"
