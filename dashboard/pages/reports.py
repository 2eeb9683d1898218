"""Reports: listed, read, edited, pinned, restored, exported; and the public page."""

from __future__ import annotations

import time
from functools import lru_cache
from threading import BoundedSemaphore
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.comments import comments_on
from dashboard.analysis.reports import rendering
from dashboard.analysis.reports.block_options import InsertForm, list_blocks
from dashboard.analysis.reports.document import Shown, show_one, show_report, show_text
from dashboard.analysis.reports.inserting import offer, translate_addresses
from dashboard.analysis.reports.models import Report, ReportVersion
from dashboard.analysis.reports.rendering import html_of, render_standalone
from dashboard.analysis.reports.services import (
    MAX_CHARS,
    MAX_VERSIONS,
    change_pin,
    check,
    create_report,
    delete_report,
    find_public_report,
    find_reports,
    get_report,
    get_version,
    list_versions,
    own_hosts,
    publish,
    restore_version,
    revoke,
    save_report,
)
from dashboard.pages.requests import Request, read_id, read_number, redirect_with
from dashboard.runs.queries import Keyed
from dashboard.web.edits import BASE, EditConflict, compare_texts, list_changes

PER_PAGE = 50


@never_cache
@require_safe
@look_up(get_membership, report=get_report)
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
        "comments": list(comments_on(report)),
        **more,
    }
    return render(request, "reports/report.html", context)


@never_cache
@require_safe
@look_up(get_membership, report=get_report)
def report_block(
    request: Request, membership: Membership, report: Report, index: int
) -> HttpResponse:
    """Show one block, live or pinned, as it is now."""
    blocks = list_blocks(report.text)
    if index >= len(blocks):
        raise Http404(f"The report has no block {index}.")
    context = {
        "team": report.team,
        "report": report,
        "part": show_one(report, blocks[index], index=index),
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
@look_up(get_membership, report=get_report)
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
    return redirect_with(
        request,
        f"Restored version {version.number} as version {report.number}.",
        "report",
        team.slug,
        report.pk,
    )


def _find_version(report: Report, text: str) -> ReportVersion:
    return get_version(report, read_number(text) or 0)


@require_safe
@look_up(get_membership)
def reports(request: Request, membership: Membership, team: Team) -> HttpResponse:
    text = request.GET.get("q", "").strip()[:200]
    pages = Paginator(find_reports(team, text), PER_PAGE)
    context = {
        "team": team,
        "page": pages.get_page(request.GET.get("page")),
        "q": text,
        "can_write": membership.can_write,
    }
    return render(request, "reports/list.html", context)


@never_cache
@require_POST
@look_up(get_writing_membership, report=get_report)
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
    return redirect_with(request, f"Deleted “{report.title}”.", "reports", team.slug)


PUBLIC_SECONDS = 5  # that a public page is good for: a link may be read by many at once
# A public link may use at most two cores of the server.
_public_slots = BoundedSemaphore(2)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership)
def report_new(request: Request, team: Team) -> HttpResponse:
    if request.method != "POST":
        return _page(request, team, None, {"title": "", "text": "", "number": 0})
    form = _read(request)
    try:
        report = create_report(
            team=team,
            user=request.user,
            title=form["title"],
            text=form["text"],
            hosts=own_hosts(request),
        )
    except ValueError as error:
        return _page(request, team, None, form, refusal=str(error), status=400)
    return redirect("report", team.slug, report.pk)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_writing_membership, report=get_report)
def report_edit(request: Request, team: Team, report: Report) -> HttpResponse:
    if request.method != "POST":
        saved = {"title": report.title, "text": report.text, "number": report.number}
        return _page(request, team, report, saved)
    form = _read(request)
    try:
        save_report(
            report=report,
            user=request.user,
            number=form["number"],
            title=form["title"],
            text=form["text"],
            hosts=own_hosts(request),
        )
    except EditConflict as conflict:
        newest = get_report(team, report.pk)
        theirs = f"{newest.title}\n\n{newest.text}"
        mine = f"{form['title']}\n\n{form['text']}".replace("\r\n", "\n").rstrip()
        saved = {"saved_by": newest.saved_by, "saved_at": newest.saved_at}
        return _page(
            request,
            team,
            newest,
            form | {"number": conflict.version},
            conflict=saved | compare_texts(theirs, mine),
            status=409,
        )
    except ValueError as error:
        return _page(request, team, report, form, refusal=str(error), status=400)
    return redirect("report", team.slug, report.pk)


def _read(request: Request) -> dict[str, Any]:
    return {
        "title": request.POST.get("title", ""),
        "text": request.POST.get("text", ""),
        "number": read_number(request.POST.get(BASE)) or 0,
    }


def _page(
    request: Request,
    team: Team,
    report: Report | None,
    form: dict[str, Any],
    *,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    context = {
        "team": team,
        "report": report,
        "form": form,
        "max_chars": MAX_CHARS,
        "parts": _preview(request, team, report, form["text"]),
        "insert": offer(team, InsertForm.read(request.GET), []),
        **more,
    }
    return render(request, "reports/edit.html", context, status=status)


def _preview(
    request: Request, team: Team, report: Report | None, text: str
) -> list[Any]:
    try:
        _, text = check("Preview", translate_addresses(text, team, own_hosts(request)))
    except ValueError:
        return []
    return show_text(team, report, text)


@never_cache
@require_POST
@look_up(get_writing_membership)
def report_preview(request: Request, team: Team) -> HttpResponse:
    """Show how the text would be read, and store nothing."""
    form = _read(request)
    report_id = read_id(request.POST.get("report"))
    report = None if report_id is None else get_report(team, report_id)
    context = {"team": team, "report": report, "refusal": ""}
    try:
        check("Preview", form["text"])
    except ValueError as error:
        context["refusal"] = str(error)
    parts = _preview(request, team, report, form["text"])
    return render(request, "reports/preview.html", {**context, "parts": parts})


@require_safe
@look_up(get_membership)
def report_insert(request: Request, team: Team) -> HttpResponse:
    """Offer choices for a block, and show the line that they make."""
    insert = offer(team, InsertForm.read(request.GET), request.GET.getlist("runs"))
    return render(request, "reports/insert.html", {"team": team, "insert": insert})


@never_cache
@require_safe
@look_up(get_membership, report=get_report)
def report_export(request: Request, report: Report) -> HttpResponse:
    return html_of(request, report)


# The public page of a report, without links into the team.


@login_not_required
@never_cache
@require_safe
def public_report(request: HttpRequest, token: str) -> HttpResponse:
    """Show a public report; 404 as soon as its link is revoked: no response is kept."""
    report = find_public_report(token)
    hosts = frozenset(own_hosts(request))
    moment = time.monotonic() // PUBLIC_SECONDS
    key = (report.pk, report.number, report.public_sha256, moment)
    with _public_slots:
        response = HttpResponse(_render_once(Keyed(key, report), hosts))
    response["Content-Security-Policy"] = (
        f"{rendering.policy()}; frame-ancestors 'none'"
    )
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response


@lru_cache(maxsize=16)
def _render_once(report: Keyed[Report], hosts: frozenset[str]) -> str:
    """Render it once for all who ask within some seconds."""
    return render_standalone(report.value, without_hosts=hosts)
