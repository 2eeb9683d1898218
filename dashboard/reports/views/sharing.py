from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_membership_for, get_writable_team
from dashboard.accounts.models import User
from dashboard.reports.queries import get_report
from dashboard.reports.services import delete_report, publish, revoke
from dashboard.reports.views.read import render_report


@never_cache
@require_POST
def report_share(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    membership = get_membership_for(request, team)
    found = get_report(membership.team, report_id)
    assert isinstance(request.user, User)
    if request.POST.get("to") == "public":
        token = publish(report=found, user=request.user)
        address = request.build_absolute_uri(reverse("public_report", args=[token]))
        return render_report(request, membership, found, public_address=address)
    if request.POST.get("to") == "team":
        revoke(report=found, user=request.user)
        messages.success(request, "The public link works no more.")
    return redirect("report", team, report_id)


@require_POST
def report_delete(request: HttpRequest, team: str, report_id: int) -> HttpResponse:
    found = get_report(get_writable_team(request, team), report_id)
    assert isinstance(request.user, User)
    delete_report(report=found, user=request.user)
    messages.success(request, f"“{found.title}” is deleted.")
    return redirect("reports", team)
