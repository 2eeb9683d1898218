"""Comments on a run or a report, and a user's mentions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership, get_writing_membership, look_up
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.comments import (
    add_comment,
    comments_on,
    delete_comment,
    mentions_of,
    see_mentions,
)
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import get_report
from dashboard.completions.models import Mention
from dashboard.pages.requests import Request
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

MENTIONS_PER_PAGE = 50
Action = Callable[[Any, Any, str], None]
# By the name of the submitted button or field.
COMMENT_ACTIONS: dict[str, Action] = {
    "uncomment": delete_comment,
    "comment": add_comment,
}


def act(request: Request, actions: Mapping[str, Action], on: Any) -> dict[str, Any]:
    """Do what was submitted; `problem` is the reason if that is refused."""
    action = next((name for name in actions if name in request.POST), "")
    typed = request.POST.get(action, "")
    problem = "" if action else "The request contains no action."
    try:
        if action:
            actions[action](request.user, on, typed)
    except ValueError as error:
        problem = str(error)
    return {"action": action, "typed": typed, "problem": problem}


@require_POST
@look_up(get_writing_membership, run=get_run)
def run_comments(request: Request, team: Team, run: Run) -> HttpResponse:
    return _comment(request, "run", team, run)


@require_POST
@look_up(get_writing_membership, report=get_report)
def report_comments(request: Request, team: Team, report: Report) -> HttpResponse:
    return _comment(request, "report", team, report)


def _comment(request: Request, kind: str, team: Team, on: Run | Report) -> HttpResponse:
    outcome = act(request, COMMENT_ACTIONS, on)
    if getattr(request, "htmx", False):
        comments = list(comments_on(on))
        context = {"team": team, kind: on, "comments": comments, "can_write": True}
        return render(request, "comments/changed.html", context | outcome)
    if outcome["problem"]:
        messages.error(request, outcome["problem"])
    return redirect(reverse(kind, args=[team.slug, on.pk]) + "#comments")


@require_safe
@look_up(get_membership)
def mentions(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """List the user's own mentions; showing the page marks them as seen."""
    mentions_ = mentions_of(membership.user, team)
    pages: Paginator[Mention] = Paginator(mentions_, MENTIONS_PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    context = {"team": team, "page": page, "mentions": list(page)}
    response = render(request, "comments/mentions.html", context)
    if request.method == "GET":
        see_mentions(membership.user, [mention.pk for mention in page])
    return response
