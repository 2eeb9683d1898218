from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership_for, get_writable_team
from dashboard.accounts.models import User
from dashboard.project.edits import compare_texts
from dashboard.reports.models import Report, ReportVersion
from dashboard.reports.queries import (
    get_report,
    get_version,
    list_versions,
)
from dashboard.reports.services import MAX_VERSIONS, SavedMeanwhile, restore_version


@require_safe
def report_history(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    """?version=3 shows that one, and what has changed since."""
    membership = get_membership_for(request, team)
    found = get_report(membership.team, report_id)
    asked = request.GET.get("version", "")
    version = _find_version(found, asked) if asked else None
    context = {
        "team": membership.team,
        "report": found,
        "versions": list_versions(found),
        "max_versions": MAX_VERSIONS,
        "version": version,
        "changes": compare_texts(version.text, found.text) if version else [],
        "can_write": membership.can_write,
    }
    return render(request, "reports/history.html", context)


@require_POST
def report_restore(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    found = get_report(get_writable_team(request, team), report_id)
    assert isinstance(request.user, User)
    version = _find_version(found, request.POST.get("version", ""))
    seen = request.POST.get("number", "")
    is_number = seen.isascii() and seen.isdigit() and len(seen) < 10
    number = int(seen) if is_number else found.number
    try:
        restore_version(report=found, user=request.user, number=number, version=version)
    except SavedMeanwhile:
        said = (
            f"{found.saved_by or 'Somebody'} saved version {found.number} after you "
            "opened this page, so nothing was restored. Look at it, then try again."
        )
        messages.error(request, said)
        return redirect("report_history", team, report_id)
    messages.success(
        request, f"Version {version.number} is the newest again, as {found.number}."
    )
    return redirect("report", team, report_id)


def _find_version(report: Report, text: str) -> ReportVersion:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return get_version(report, int(text) if is_number else -1)
