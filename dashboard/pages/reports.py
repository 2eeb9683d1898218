"""Reports: listed, read, pinned, restored, shared, deleted."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership_for, get_writable_team
from dashboard.accounts.models import Membership
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
def report(request: Request, team: str, report_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    report_ = get_report(membership.team, report_id)
    return render_report(request, membership, report_)


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
def report_block(
    request: Request, team: str, report_id: int, index: int
) -> HttpResponse:
    """Show one block, live or pinned, as it is now."""
    membership = get_membership_for(request, team)
    report_ = get_report(membership.team, report_id)
    blocks = list_blocks(report_.text)
    if index >= len(blocks):
        raise Http404(f"The report has no block {index}.")
    part = show_one(report_, blocks[index], index=index)
    context = {
        "team": report_.team,
        "report": report_,
        "part": part,
        "can_write": membership.can_write,
    }
    return render(request, "reports/block.html", context)


@require_POST
def report_pin(request: Request, team: str, report_id: int) -> HttpResponse:
    report_ = get_report(get_writable_team(request, team), report_id)
    index = read_number(request.POST.get("index"))
    try:
        change_pin(
            report=report_,
            user=request.user,
            number=read_number(request.POST.get(BASE)) or 0,
            index=-1 if index is None else index,
            to=request.POST.get("to", ""),
        )
    except EditConflict:
        message = (
            f"{report_.saved_by or 'Another member'} saved this report in the "
            "meantime, so nothing was changed. "
        )
        messages.error(request, message + "Reload the page and try again.")
    except ValueError as error:
        messages.error(request, str(error))
    return redirect(reverse("report", args=[team, report_id]) + f"#block-{index}")


@require_safe
def report_history(request: Request, team: str, report_id: int) -> HttpResponse:
    """?version=3 shows that one, and what has changed since."""
    membership = get_membership_for(request, team)
    report_ = get_report(membership.team, report_id)
    requested = request.GET.get("version", "")
    version = _find_version(report_, requested) if requested else None
    context = {
        "team": membership.team,
        "report": report_,
        "versions": list_versions(report_),
        "max_versions": MAX_VERSIONS,
        "version": version,
        "changes": list_changes(version.text, report_.text) if version else [],
        "can_write": membership.can_write,
    }
    return render(request, "reports/history.html", context)


@require_POST
def report_restore(request: Request, team: str, report_id: int) -> HttpResponse:
    report_ = get_report(get_writable_team(request, team), report_id)
    version = _find_version(report_, request.POST.get("version", ""))
    base = read_number(request.POST.get(BASE))
    number = report_.number if base is None else base
    try:
        restore_version(
            report=report_, user=request.user, number=number, version=version
        )
    except EditConflict:
        message = (
            f"{report_.saved_by or 'Another member'} saved version {report_.number} "
            "after you opened this page, so nothing was restored. Review that "
            "version, then try again."
        )
        messages.error(request, message)
        return redirect("report_history", team, report_id)
    messages.success(
        request, f"Restored version {version.number} as version {report_.number}."
    )
    return redirect("report", team, report_id)


def _find_version(report: Report, text: str) -> ReportVersion:
    return get_version(report, read_number(text) or 0)


@require_safe
def reports(request: Request, team: str) -> HttpResponse:
    membership = get_membership_for(request, team)
    form = ListForm.read(request.GET)
    text = form.value("q")
    context = {
        "team": membership.team,
        "page": list_reports(membership.team, text, form.value("page")),
        "q": text,
        "can_write": membership.can_write,
    }
    return render(request, "reports/list.html", context)


@never_cache
@require_POST
def report_share(request: Request, team: str, report_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    report_ = get_report(membership.team, report_id)
    if request.POST.get("to") == "public":
        token = publish(report=report_, user=request.user)
        address = request.build_absolute_uri(reverse("public_report", args=[token]))
        return render_report(request, membership, report_, public_address=address)
    if request.POST.get("to") == "team":
        revoke(report=report_, user=request.user)
        messages.success(request, "Revoked the public link.")
    return redirect("report", team, report_id)


@require_POST
def report_delete(request: Request, team: str, report_id: int) -> HttpResponse:
    report_ = get_report(get_writable_team(request, team), report_id)
    delete_report(report=report_, user=request.user)
    messages.success(request, f"Deleted “{report_.title}”.")
    return redirect("reports", team)
