"""Reports: listed, read, pinned, restored, shared, deleted."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import (
    get_membership_for,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.reports.block_options import list_blocks
from dashboard.analysis.reports.document import Shown, show_one, show_report
from dashboard.analysis.reports.models import Report, ReportVersion
from dashboard.analysis.reports.services import (
    MAX_VERSIONS,
    ListForm,
    change_pin,
    delete_report,
    get_report,
    get_version,
    list_reports,
    list_versions,
    publish,
    restore_version,
    revoke,
)
from dashboard.pages.requests import Request, read_number
from dashboard.web.edits import BASE, EditConflict, list_changes


@never_cache
@require_safe
@look_up(get_membership_for, report=get_report)
def report(request: Request, membership: Membership, report: Report) -> HttpResponse:
    return render_report(request, membership, report)


def render_report(
    request: Request, membership: Membership, report: Report, **more: Any
) -> HttpResponse:
    parts = show_report(report)
    context = {
        "team": membership.team,
        "report": report,
        "parts": parts,
        "can_write": membership.can_write,
        "num_live": sum(isinstance(p, Shown) and p.pin is None for p in parts),
        **more,
    }
    return render(request, "reports/report.html", context)


@never_cache
@require_safe
@look_up(get_membership_for, report=get_report)
def report_block(
    request: Request, membership: Membership, report: Report, index: int
) -> HttpResponse:
    """Show one block, live or pinned, as it is now."""
    blocks = list_blocks(report.text)
    if index >= len(blocks):
        raise Http404(f"The report has no block {index}.")
    part = show_one(report, blocks[index], index=index)
    context = {
        "team": report.team,
        "report": report,
        "part": part,
        "can_write": membership.can_write,
    }
    return render(request, "reports/block.html", context)


@require_POST
@look_up(get_writing_membership, report=get_report)
def report_pin(request: Request, team: Team, report: Report) -> HttpResponse:
    index = read_number(request.POST.get("index"))
    try:
        change_pin(
            report=report,
            user=request.user,
            number=read_number(request.POST.get(BASE)) or 0,
            index=-1 if index is None else index,
            to=request.POST.get("to", ""),
        )
    except EditConflict:
        message = (
            f"{report.saved_by or 'Another member'} saved this report in the "
            "meantime, so nothing was changed. "
        )
        messages.error(request, message + "Reload the page and try again.")
    except ValueError as error:
        messages.error(request, str(error))
    return redirect(reverse("report", args=[team.slug, report.pk]) + f"#block-{index}")


@require_safe
@look_up(get_membership_for, report=get_report)
def report_history(
    request: Request, membership: Membership, team: Team, report: Report
) -> HttpResponse:
    """?version=3 shows that one, and what has changed since."""
    requested = request.GET.get("version", "")
    version = _find_version(report, requested) if requested else None
    context = {
        "team": team,
        "report": report,
        "versions": list_versions(report),
        "max_versions": MAX_VERSIONS,
        "version": version,
        "changes": list_changes(version.text, report.text) if version else [],
        "can_write": membership.can_write,
    }
    return render(request, "reports/history.html", context)


@require_POST
@look_up(get_writing_membership, report=get_report)
def report_restore(request: Request, team: Team, report: Report) -> HttpResponse:
    version = _find_version(report, request.POST.get("version", ""))
    base = read_number(request.POST.get(BASE))
    number = report.number if base is None else base
    try:
        restore_version(
            report=report, user=request.user, number=number, version=version
        )
    except EditConflict:
        message = (
            f"{report.saved_by or 'Another member'} saved version {report.number} "
            "after you opened this page, so nothing was restored. Review that "
            "version, then try again."
        )
        messages.error(request, message)
        return redirect("report_history", team.slug, report.pk)
    messages.success(
        request, f"Restored version {version.number} as version {report.number}."
    )
    return redirect("report", team.slug, report.pk)


def _find_version(report: Report, text: str) -> ReportVersion:
    return get_version(report, read_number(text) or 0)


@require_safe
@look_up(get_membership_for)
def reports(request: Request, membership: Membership, team: Team) -> HttpResponse:
    form = ListForm.read(request.GET)
    text = form.value("q")
    context = {
        "team": team,
        "page": list_reports(team, text, form.value("page")),
        "q": text,
        "can_write": membership.can_write,
    }
    return render(request, "reports/list.html", context)


@never_cache
@require_POST
@look_up(get_membership_for, report=get_report)
def report_share(
    request: Request, membership: Membership, team: Team, report: Report
) -> HttpResponse:
    if request.POST.get("to") == "public":
        token = publish(report=report, user=request.user)
        address = request.build_absolute_uri(reverse("public_report", args=[token]))
        return render_report(request, membership, report, public_address=address)
    if request.POST.get("to") == "team":
        revoke(report=report, user=request.user)
        messages.success(request, "Revoked the public link.")
    return redirect("report", team.slug, report.pk)


@require_POST
@look_up(get_writing_membership, report=get_report)
def report_delete(request: Request, team: Team, report: Report) -> HttpResponse:
    delete_report(report=report, user=request.user)
    messages.success(request, f"Deleted “{report.title}”.")
    return redirect("reports", team.slug)
