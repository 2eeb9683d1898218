"""A team's storage: what it uses, what it may, and how long its trash is kept."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_managed_team, get_membership
from dashboard.accounts.models import Team, User
from dashboard.upkeep.forms import RetentionForm
from dashboard.upkeep.quotas import standing_of
from dashboard.upkeep.retention import days_of, preview, set_days

PARTS = {
    "runs": ("Runs", "logs and checkpoints, those in the trash too"),
    "models": ("Published models", ""),
    "datasets": ("Datasets", "rows of all versions"),
    "waiting": ("Files that wait", "to become datasets or runs"),
}


@require_http_methods(["GET", "HEAD", "POST"])
def team_storage(request: HttpRequest, team: str) -> HttpResponse:
    """`?days=` shows what would be deleted; a POST keeps that number."""
    assert isinstance(request.user, User)
    if request.method == "POST":
        return _set(request, get_managed_team(request, team), request.user)
    membership = get_membership(request.user, team)
    form = RetentionForm(request.GET if "days" in request.GET else None)
    return _show(request, membership.team, form, can_manage=membership.can_manage)


def _set(request: HttpRequest, team: Team, user: User) -> HttpResponse:
    form = RetentionForm(request.POST)
    if not form.is_valid():
        return _show(request, team, form, can_manage=True, status=422)
    days = form.cleaned_data["days"]
    set_days(team, user, days)
    messages.success(request, f"The trash is kept for {days} days.")
    return redirect("team_storage", team.slug)


def _show(
    request: HttpRequest,
    team: Team,
    form: RetentionForm,
    *,
    can_manage: bool,
    status: int = 200,
) -> HttpResponse:
    days = days_of(team)
    chosen = form.cleaned_data["days"] if form.is_bound and form.is_valid() else days
    if not form.is_bound:
        form = RetentionForm(initial={"days": days})
    standing = standing_of(team)
    context = {
        "team": team,
        "can_manage": can_manage,
        "standing": standing,
        "parts": [(*PARTS[key], num) for key, num in standing.parts.items()],
        "form": form,
        "days": days,
        "preview": preview(team, chosen),
    }
    return render(request, "upkeep/storage.html", context, status=status)
