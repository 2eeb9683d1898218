"""What admins and owners do with one member."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_managing_membership, get_owning_membership
from dashboard.accounts.members import (
    change_role,
    deactivate,
    reactivate,
    remove_member,
)
from dashboard.accounts.models import Membership
from dashboard.accounts.views.team import render_settings
from dashboard.project.edits import Edit, EditConflict, show_conflict


@require_POST
def member_role(request: HttpRequest, team: str, member_id: int) -> HttpResponse:
    by = get_managing_membership(request, team)
    of = _member(by, member_id)
    edit = Edit.read(request.POST, ["role"])
    if "role" not in edit.given and "role" in request.POST:
        return redirect("team_settings", team)  # the saved one is kept
    role, was = edit.given.get("role", ""), edit.was.get("role")
    try:
        return _answer(
            request,
            by,
            lambda: change_role(by=by, of=of, role=role, was=was),
            f"{of.user} is {role} now.",
        )
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=str(of.user),
            back=reverse("team_settings", args=[team]),
            choices={"role": {}},
            team=by.team,
        )


@require_POST
def member_remove(request: HttpRequest, team: str, member_id: int) -> HttpResponse:
    by = get_managing_membership(request, team)
    gone = _member(by, member_id)
    return _answer(
        request,
        by,
        lambda: remove_member(by=by, member=gone),
        f"{gone.user} is no longer in the team.",
    )


@require_POST
def member_deactivate(request: HttpRequest, team: str, member_id: int) -> HttpResponse:
    by = get_owning_membership(request, team)
    member = _member(by, member_id)
    return _answer(
        request,
        by,
        lambda: deactivate(by=by, member=member),
        f"{member.user} is deactivated: signed out everywhere, and can't sign in.",
    )


@require_POST
def member_reactivate(request: HttpRequest, team: str, member_id: int) -> HttpResponse:
    by = get_owning_membership(request, team)
    member = _member(by, member_id)
    return _answer(
        request,
        by,
        lambda: reactivate(by=by, member=member),
        f"{member.user} can sign in again.",
    )


def _member(by: Membership, member_id: int) -> Membership:
    members = by.team.memberships.select_related("user")
    return get_object_or_404(members, pk=member_id)


def _answer(
    request: HttpRequest, by: Membership, act: Callable[[], None], done: str
) -> HttpResponse:
    try:
        act()
    except ValueError as refusal:
        return render_settings(request, by, refusal=refusal)
    messages.success(request, done)
    return redirect("team_settings", by.team.slug)
