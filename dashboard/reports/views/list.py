from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_membership_for
from dashboard.reports.forms import ListForm
from dashboard.reports.queries import list_reports


@require_safe
def reports(request: HttpRequest, team: str) -> HttpResponse:
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
