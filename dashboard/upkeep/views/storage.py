"""A team's storage: what it uses, what it may, and how long its things are kept."""

from __future__ import annotations

from dataclasses import asdict, replace

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.access import get_managed_team, get_membership
from dashboard.accounts.models import Team, User
from dashboard.project.edits import Edit, EditConflict, began_with, show_conflict
from dashboard.upkeep.forms import RetentionForm
from dashboard.upkeep.kept import Kept, keep, kept_by
from dashboard.upkeep.old_completions import preview_completions
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
    try:
        chosen = keep(team, user, _edit(form, request.POST))
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=f"Storage of {team}",
            back=request.path,
            labels={name: str(field.label) for name, field in form.fields.items()},
            team=team,
        )
    messages.success(request, chosen.words)
    return redirect("team_storage", team.slug)


def _edit(form: RetentionForm, given: QueryDict) -> Edit:
    """Of a form that is valid; what it does not name stays as it is."""
    sent = Edit.read(given, form.fields)
    return sent.clean(**{n: field.to_python for n, field in form.fields.items()})


def _chosen(edit: Edit, now: Kept) -> Kept:
    """What it would keep; where it is in conflict, what was typed."""
    try:
        return replace(now, **edit.merge(asdict(now)))
    except EditConflict:
        return replace(now, **edit.given)


def _show(
    request: HttpRequest,
    team: Team,
    form: RetentionForm | None,
    *,
    can_manage: bool,
    status: int = 200,
) -> HttpResponse:
    now = kept_by(team)
    given = request.POST or request.GET
    is_valid = form is not None and form.is_valid()
    chosen = _chosen(_edit(form, given), now) if form and is_valid else now
    blank = RetentionForm(initial=asdict(now))
    standing = standing_of(team)
    context = {
        "team": team,
        "can_manage": can_manage,
        "standing": standing,
        "parts": [(*words, standing.parts.get(key, 0)) for key, words in PARTS.items()],
        "form": form or blank,
        "began": began_with(blank, given),
        "now": now,
        "chosen": chosen,
        "preview": preview(team, chosen.days),
        "completions": preview_completions(team, chosen.completion_days),
    }
    return render(request, "upkeep/storage.html", context, status=status)
