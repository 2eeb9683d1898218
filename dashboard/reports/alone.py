"""A report in one page of its own: no script, no request, no link into the team."""

from __future__ import annotations

from collections.abc import Collection

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import mark_safe

from dashboard.reports import style
from dashboard.reports.document import show_report
from dashboard.reports.models import Report


def render_alone(report: Report, *, without_hosts: Collection[str]) -> str:
    context = {
        "report": report,
        "parts": show_report(report),
        "style": mark_safe(style.alone()),  # nosec B308, B703 # noqa: S308 - our own files
        "policy": style.policy(),
        "without_hosts": without_hosts,
        "now": timezone.now(),
    }
    return render_to_string("reports/alone.html", context)
