"""A team's storage: what it uses, what it may, and how long its things are kept."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_managed_team, get_membership
from dashboard.accounts.models import Team, User
from dashboard.upkeep.forms import RetentionForm
from dashboard.upkeep.kept import Kept, keep, kept_by
from dashboard.upkeep.old_completions import completion_days_of, preview_completions
from dashboard.upkeep.quotas import standing_of
from dashboard.upkeep.retention import preview

PARTS = {
    "completions": ("Completions", "texts, which runs' logs hold too"),
    "runs": ("Runs", "logs and checkpoints, those in the trash too"),
    "models": ("Published models", ""),
    "datasets": ("Datasets", "rows of all versions"),
    "outside": ("Runs trained elsewhere", "what their trainers told of them"),
    "waiting": ("Files that wait", "to become datasets or runs"),
}


@require_http_methods(["GET", "HEAD", "POST"])
def team_storage(request: HttpRequest, team: str) -> HttpResponse:
    """`?days=&completion_days=` shows what would be deleted; a POST keeps them."""
    assert isinstance(request.user, User)
    if request.method == "POST":
        return _set(request, get_managed_team(request, team), request.user)
    membership = get_membership(request.user, team)
    form = RetentionForm(request.GET) if "days" in request.GET else None
    return _show(request, membership.team, form, can_manage=membership.can_manage)


def _set(request: HttpRequest, team: Team, user: User) -> HttpResponse:
    form = RetentionForm(request.POST)
    if not form.is_valid():
        return _show(request, team, form, can_manage=True, status=422)
    chosen = _chosen(form, team)
    keep(team, user, chosen)
    messages.success(request, chosen.words)
    return redirect("team_storage", team.slug)


def _chosen(form: RetentionForm, team: Team) -> Kept:
    """Of a form that is valid; what it does not name stays as it is."""
    if "completion_days" in form.data:
        return Kept(**form.cleaned_data)
    now = completion_days_of(team)
    return Kept(days=form.cleaned_data["days"], completion_days=now)


def _show(
    request: HttpRequest,
    team: Team,
    form: RetentionForm | None,
    *,
    can_manage: bool,
    status: int = 200,
) -> HttpResponse:
    now = kept_by(team)
    chosen = _chosen(form, team) if form and form.is_valid() else now
    initial = {"days": now.days, "completion_days": now.completion_days}
    standing = standing_of(team)
    context = {
        "team": team,
        "can_manage": can_manage,
        "standing": standing,
        "parts": [(*words, standing.parts.get(key, 0)) for key, words in PARTS.items()],
        "form": form or RetentionForm(initial=initial),
        "now": now,
        "chosen": chosen,
        "preview": preview(team, chosen.days),
        "completions": preview_completions(team, chosen.completion_days),
    }
    return render(request, "upkeep/storage.html", context, status=status)
