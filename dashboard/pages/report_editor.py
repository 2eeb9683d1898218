from __future__ import annotations

import time
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

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.analysis.reports import rendering
from dashboard.analysis.reports.block_options import InsertForm
from dashboard.analysis.reports.document import show_text
from dashboard.analysis.reports.inserting import offer, translate_addresses
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.rendering import html_of, render_standalone
from dashboard.analysis.reports.services import (
    MAX_BLOCKS,
    MAX_CHARS,
    SavedMeanwhile,
    check,
    create_report,
    find_public_report,
    get_report,
    own_hosts,
    save_report,
)
from dashboard.project.edits import MAX_DIFFERENCES, compare_texts


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def report_new(request: HttpRequest, team: str) -> HttpResponse:
    team_ = get_writable_team(request, team)
    if request.method != "POST":
        return _page(request, team_, None, {"title": "", "text": "", "number": 0})
    form = _read(request)
    assert isinstance(request.user, User)
    try:
        report = create_report(
            team=team_,
            user=request.user,
            title=form["title"],
            text=form["text"],
            hosts=own_hosts(request),
        )
    except ValueError as error:
        return _page(request, team_, None, form, refusal=str(error), status=400)
    return redirect("report", team, report.pk)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def report_edit(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    report = get_report(team_, report_id)
    if request.method != "POST":
        saved = {"title": report.title, "text": report.text, "number": report.number}
        return _page(request, team_, report, saved)
    form = _read(request)
    assert isinstance(request.user, User)
    try:
        save_report(
            report=report,
            user=request.user,
            number=form["number"],
            title=form["title"],
            text=form["text"],
            hosts=own_hosts(request),
        )
    except SavedMeanwhile:
        return _show_both(request, team_, get_report(team_, report_id), form)
    except ValueError as error:
        return _page(request, team_, report, form, refusal=str(error), status=400)
    return redirect("report", team, report.pk)


def _show_both(
    request: HttpRequest, team: Team, theirs: Report, form: dict[str, Any]
) -> HttpResponse:
    """Saved again, the reader's goes over what they have then seen."""
    text = form["text"].replace("\r\n", "\n").rstrip()
    changes = compare_texts(theirs.text, text)
    mine = {**form, "number": theirs.number}
    return _page(
        request,
        team,
        theirs,
        mine,
        theirs=theirs,
        changes=changes[:MAX_DIFFERENCES],
        num_changes=len(changes),
        status=409,
    )


def _read(request: HttpRequest) -> dict[str, Any]:
    number = request.POST.get("number", "")
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    return {
        "title": request.POST.get("title", ""),
        "text": request.POST.get("text", ""),
        "number": int(number) if is_number else -1,
    }


def _page(
    request: HttpRequest,
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
    request: HttpRequest, team: Team, report: Report | None, text: str
) -> list[Any]:
    try:
        _, text = check("Preview", translate_addresses(text, team, own_hosts(request)))
    except ValueError:
        return []
    return show_text(team, report, text)


@never_cache
@require_POST
def report_preview(request: HttpRequest, team: str) -> HttpResponse:
    """How the text would be read, nothing of it stored."""
    team_ = get_writable_team(request, team)
    form = _read(request)
    asked = request.POST.get("report", "")
    is_number = asked.isascii() and asked.isdigit() and len(asked) <= 18
    report = get_report(team_, int(asked)) if is_number else None
    context = {"team": team_, "report": report, "refusal": ""}
    try:
        check("Preview", form["text"])
    except ValueError as error:
        context["refusal"] = str(error)
    parts = _preview(request, team_, report, form["text"])
    return render(request, "reports/preview.html", {**context, "parts": parts})


@require_safe
def report_insert(request: HttpRequest, team: str) -> HttpResponse:
    """What can be chosen for a block, and the line that the choice makes."""
    team_ = get_team(request, team)
    form = InsertForm.read(request.GET)
    insert = offer(team_, form, request.GET.getlist("runs"))
    return render(request, "reports/insert.html", {"team": team_, "insert": insert})


@never_cache
@require_safe
def report_export(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    return html_of(request, get_report(get_team(request, team), report_id))


# A report behind its public link: what it shows, and no way into the team.

SECONDS = 5  # that an answer is good for: a link may be read by many at once
# A link known to strangers takes two cores' worth of the server at most.
_turns = BoundedSemaphore(2)


@login_not_required
@never_cache
@require_safe
def public_report(request: HttpRequest, token: str) -> HttpResponse:
    """404 from the moment the link is revoked: no answer of it is kept."""
    report = find_public_report(token)
    question = _Question(report, frozenset(own_hosts(request)))
    with _turns:
        response = HttpResponse(_answer_once(question))
    response["Content-Security-Policy"] = (
        f"{rendering.policy()}; frame-ancestors 'none'"
    )
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    return response


class _Question:
    """Equal for all who ask within some seconds; asked once the link was found."""

    def __init__(self, report: Report, hosts: frozenset[str]) -> None:
        self.report, self.hosts = report, hosts
        moment = time.monotonic() // SECONDS
        self.key = (report.pk, report.number, report.public_sha256, hosts, moment)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.key == other.key


@lru_cache(maxsize=16)
def _answer_once(question: _Question) -> str:
    return render_standalone(question.report, without_hosts=question.hosts)
