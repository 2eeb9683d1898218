from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.reports.alone import render_alone
from dashboard.reports.hosts import own_hosts
from dashboard.reports.models import Report
from dashboard.reports.queries import get_report


@never_cache
@require_safe
def report_export(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    return html_of(request, get_report(get_team(request, team), report_id))


def html_of(request: HttpRequest, report: Report) -> HttpResponse:
    """One page that needs nothing else."""
    page = render_alone(report, without_hosts=own_hosts(request))
    response = HttpResponse(page.encode(), content_type="text/html; charset=utf-8")
    name = f"{_file_name(report)}.html"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    # It is a file to keep, and acts as no page of ours where a browser shows it.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def _file_name(report: Report) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", report.title.lower()).strip("-")
    return words[:60] or f"report-{report.pk}"
