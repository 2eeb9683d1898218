"""A team's settings: its people, and the team as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import (
    ASCENDING,
    RIGHTS,
    get_membership,
    get_owning_membership,
    roles_given_by,
)
from dashboard.accounts.forms import InviteForm, TeamForm
from dashboard.accounts.members import (
    leave,
    may_switch,
    open_invitations,
    transfer_ownership,
)
from dashboard.accounts.models import Membership, Role, User
from dashboard.accounts.services import create_team


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member, with what the reader may do."""

    membership: Membership
    roles: list[Role]  # that it may be given
    can_remove: bool
    can_switch: bool  # off and on


@require_safe
def team_settings(request: HttpRequest, team: str) -> HttpResponse:
    assert isinstance(request.user, User)
    return render_settings(request, get_membership(request.user, team))


def render_settings(
    request: HttpRequest, membership: Membership, **more: Any
) -> HttpResponse:
    """`refusal`: why something was not done."""
    rows = list(_rows(membership))
    invite_form = InviteForm(by=membership, can_send=settings.MAIL_IS_SET_UP)
    context: dict[str, Any] = {
        "membership": membership,
        "team": membership.team,
        "rows": rows,
        "heirs": _heirs(membership),
        "is_last_owner": membership.is_owner
        and sum(r.membership.is_owner and r.membership.user.is_active for r in rows)
        < 2,
        "roles": ASCENDING,
        "rights": RIGHTS,
        "invite_form": invite_form,
        **more,
    }
    if membership.can_manage:
        context["invitations"] = open_invitations(membership.team)
    status = 422 if "refusal" in more else 200
    return render(request, "accounts/team_settings.html", context, status=status)


def _rows(reader: Membership) -> Iterator[MemberRow]:
    members = Membership.objects.filter(team=reader.team).select_related("user")
    given = roles_given_by(reader.role)
    for member in members.order_by("user__username"):
        is_self = member.pk == reader.pk
        yield MemberRow(
            membership=member,
            roles=given if member.role in given else [],
            can_remove=member.role in given and not is_self,
            can_switch=not is_self
            and reader.is_owner
            and may_switch(reader, member.user),
        )


def _heirs(reader: Membership) -> list[Membership]:
    if not reader.is_owner:
        return []
    others = Membership.objects.filter(team=reader.team, user__is_active=True)
    by_name = others.exclude(pk=reader.pk).order_by("user__username")
    return list(by_name.select_related("user"))


@require_POST
def team_transfer(request: HttpRequest, team: str) -> HttpResponse:
    owner = get_owning_membership(request, team)
    others = owner.team.memberships.select_related("user")
    chosen = request.POST.get("to", "")
    is_number = chosen.isascii() and chosen.isdigit() and len(chosen) < 19
    heir = get_object_or_404(others, pk=chosen if is_number else 0)
    try:
        transfer_ownership(by=owner, to=heir)
    except ValueError as refusal:
        return render_settings(request, owner, refusal=refusal)
    messages.success(request, f"{heir.user} owns the team now, and you are an admin.")
    return redirect("team_settings", team)


@require_POST
def team_leave(request: HttpRequest, team: str) -> HttpResponse:
    assert isinstance(request.user, User)
    member = get_membership(request.user, team)
    try:
        if "confirmed" not in request.POST:
            raise ValueError("You are still in the team: tick that you mean it.")
        leave(member)
    except ValueError as refusal:
        return render_settings(request, member, refusal=refusal)
    messages.success(request, f"You have left {member.team}.")
    return redirect("home")


@require_http_methods(["GET", "HEAD", "POST"])
def team_new(request: HttpRequest) -> HttpResponse:
    """For who manages a team already: teams share the server's workers."""
    assert isinstance(request.user, User)
    if not request.user.memberships.filter(role__in=[Role.ADMIN, Role.OWNER]).exists():
        raise PermissionDenied(
            "A new team is made by somebody who is an admin or owner of a team. Ask "
            "one of them."
        )
    form = TeamForm(request.POST or None)
    if form.is_bound and form.is_valid():
        made = create_team(**form.cleaned_data, owner=request.user)
        messages.success(request, f"{made} is there, and you own it. Invite people.")
        return redirect("team_settings", made.slug)
    status = 422 if form.is_bound else 200
    return render(request, "accounts/team_new.html", {"form": form}, status=status)
