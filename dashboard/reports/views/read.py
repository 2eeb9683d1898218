from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership_for, get_writable_team
from dashboard.accounts.models import Membership, User
from dashboard.reports.block_lines import list_blocks
from dashboard.reports.document import Shown, show_one, show_report
from dashboard.reports.models import Report
from dashboard.reports.queries import get_report
from dashboard.reports.services import SavedMeanwhile, change_pin


@never_cache
@require_safe
def report(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    found = get_report(membership.team, report_id)
    return render_report(request, membership, found)


def render_report(
    request: HttpRequest, membership: Membership, report: Report, **more: Any
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
    request: HttpRequest, team: str, report_id: int, place: int
) -> HttpResponse:
    """One block, live or pinned, as it is now."""
    membership = get_membership_for(request, team)
    found = get_report(membership.team, report_id)
    blocks = list_blocks(found.text)
    if place >= len(blocks):
        raise Http404(f"The report has no block {place}.")
    shown = show_one(found, blocks[place], place=place)
    context = {
        "team": found.team,
        "report": found,
        "part": shown,
        "can_write": membership.can_write,
    }
    return render(request, "reports/block.html", context)


@require_POST
def report_pin(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    found = get_report(get_writable_team(request, team), report_id)
    assert isinstance(request.user, User)
    place, number = (request.POST.get(name, "") for name in ("place", "number"))
    to = request.POST.get("to", "")
    try:
        change_pin(
            report=found,
            user=request.user,
            number=_read_number(number),
            place=_read_number(place),
            to=to,
        )
    except SavedMeanwhile:
        said = f"{found.saved_by} saved this report meanwhile: nothing was changed. "
        messages.error(request, said + "Look at it as it is now, and try again.")
    except ValueError as error:
        messages.error(request, str(error))
    return redirect(reverse("report", args=[team, report_id]) + f"#block-{place[:6]}")


def _read_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
