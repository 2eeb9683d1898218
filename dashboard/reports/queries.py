from __future__ import annotations

from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import Http404

from dashboard.accounts.models import Team
from dashboard.reports.models import Report, ReportVersion
from dashboard.reports.services import digest

REPORTS_PER_PAGE = 50
MAX_WORDS = 8


def get_report(team: Team, report_id: int) -> Report:
    """One query, or 404."""
    reports = Report.objects.select_related(
        "team", "created_by", "saved_by", "published_by"
    )
    try:
        return reports.get(team=team, pk=report_id)
    except Report.DoesNotExist:
        raise Http404("No such report.") from None


def get_version(report: Report, number: int) -> ReportVersion:
    try:
        return report.versions.select_related("saved_by").get(number=number)
    except ReportVersion.DoesNotExist:
        raise Http404(f"Version {number} of this report is not kept.") from None


def find_public_report(token: str) -> Report:
    """One query, or 404: of a link that was revoked as of one that never was."""
    reports = Report.objects.select_related("team")
    try:
        return reports.get(public_sha256=digest(token))
    except Report.DoesNotExist:
        raise Http404("No such report.") from None


def find_reports(team: Team, text: str) -> QuerySet[Report]:
    """Those whose title or text holds every word, the newest first."""
    found = Report.objects.filter(team=team).select_related("saved_by")
    for word in text.replace("\x00", "").split()[:MAX_WORDS]:
        found = found.filter(Q(title__icontains=word) | Q(text__icontains=word))
    return found.defer("text").order_by("-saved_at", "-pk")


def list_reports(team: Team, text: str, page: int) -> Page[Report]:
    return Paginator(find_reports(team, text), REPORTS_PER_PAGE).get_page(page)


def list_versions(report: Report) -> list[ReportVersion]:
    versions = report.versions.defer("text").select_related("saved_by")
    return list(versions.order_by("-number"))
