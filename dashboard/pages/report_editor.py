"""Editing, preview and export of reports, and the public page."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache
from threading import BoundedSemaphore
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
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
from dashboard.accounts.models import Team
from dashboard.analysis.reports import rendering
from dashboard.analysis.reports.block_options import InsertForm
from dashboard.analysis.reports.document import show_text
from dashboard.analysis.reports.inserting import offer, translate_addresses
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.rendering import html_of, render_standalone
from dashboard.analysis.reports.services import (
    MAX_BLOCKS,
    MAX_CHARS,
    check,
    create_report,
    find_public_report,
    get_report,
    own_hosts,
    save_report,
)
from dashboard.pages.requests import Request, read_id, read_number
from dashboard.web.edits import BASE, EditConflict, compare_texts

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
        "max_blocks": MAX_BLOCKS,
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
    form = InsertForm.read(request.GET)
    insert = offer(team, form, request.GET.getlist("runs"))
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
    key = (report.pk, report.number, report.public_sha256, hosts, moment)
    with _public_slots:
        response = HttpResponse(_render_once(_Query(key, report, hosts)))
    response["Content-Security-Policy"] = (
        f"{rendering.policy()}; frame-ancestors 'none'"
    )
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response


@dataclass(frozen=True, slots=True)
class _Query:
    """Equal for all who ask within some seconds; asked once the link was found."""

    key: tuple[Any, ...]
    report: Report = field(compare=False)
    hosts: frozenset[str] = field(compare=False)


@lru_cache(maxsize=16)
def _render_once(query: _Query) -> str:
    return render_standalone(query.report, without_hosts=query.hosts)
