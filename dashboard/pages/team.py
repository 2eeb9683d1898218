"""A team's settings: its people, and the team as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import (
    ASCENDING,
    RIGHTS,
    get_managing_membership,
    get_membership,
    get_owning_membership,
    look_up,
    roles_given_by,
)
from dashboard.accounts.adapters import link
from dashboard.accounts.forms import InviteForm, SignUpForm, TeamForm
from dashboard.accounts.members import (
    accept,
    change_role,
    deactivate,
    find_invitation,
    invite,
    leave,
    may_switch,
    open_invitations,
    reactivate,
    remove_member,
    revoke,
    send_invitation,
    transfer_ownership,
)
from dashboard.accounts.models import Invitation, Membership, Role, Team, User
from dashboard.accounts.services import create_team, last_entry
from dashboard.pages.account import sign_user_in
from dashboard.pages.requests import Request, read_id, redirect_with
from dashboard.project.errors import UserError
from dashboard.web.edits import BASE, EditConflict, show_conflict


@require_safe
@look_up(get_membership)
def team_settings(request: Request, membership: Membership) -> HttpResponse:
    """?changed= and ?was=: whose role was just changed, and from what."""
    return _show_members(request, membership)


def _show_members(
    request: Request, membership: Membership, **more: Any
) -> HttpResponse:
    rows = list(_rows(membership))
    context = {"membership": membership, "rows": rows, "undo": _undo(request, rows)}
    return _show(request, "team_settings", membership, context | more)


def _undo(request: Request, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    pk, role = read_id(request.GET.get("changed")), request.GET.get("was")
    for row in rows:
        member = row["membership"]
        if member.pk == pk and role in row["roles"] and role != member.role:
            return {"member": member, "role": role}
    return None


@require_safe
@look_up(get_managing_membership)
def team_invitations(request: Request, membership: Membership) -> HttpResponse:
    return _show_invitations(request, membership)


def _show_invitations(request: Request, by: Membership, **more: Any) -> HttpResponse:
    context = {
        "invite_form": InviteForm(by=by, can_send=settings.MAIL_IS_SET_UP),
        "invitations": open_invitations(by.team),
    }
    return _show(request, "invitations", by, context | more)


@require_safe
@look_up(get_membership)
def team_roles(request: Request, membership: Membership) -> HttpResponse:
    return _show(request, "roles", membership, {"roles": ASCENDING, "rights": RIGHTS})


@require_safe
@look_up(get_membership)
def team_danger(request: Request, membership: Membership) -> HttpResponse:
    return _show_danger(request, membership)


def _show_danger(request: Request, membership: Membership, **more: Any) -> HttpResponse:
    active = membership.team.memberships.filter(user__is_active=True)
    owners = active.filter(role=Role.OWNER)
    others = active.exclude(pk=membership.pk).select_related("user")
    context = {
        "heirs": others.order_by("user__username") if membership.is_owner else [],
        "is_last_owner": membership.is_owner and owners.count() < 2,
    }
    return _show(request, "danger", membership, context | more)


def _show(
    request: Request, page: str, membership: Membership, context: dict[str, Any]
) -> HttpResponse:
    """`refusal` in the context: why something was not done."""
    status = 422 if "refusal" in context else 200
    context |= {"team": membership.team}
    return render(request, f"accounts/{page}.html", context, status=status)


def _rows(reader: Membership) -> Iterator[dict[str, Any]]:
    """The members, with what the reader may do: give roles, remove, switch off."""
    members = Membership.objects.filter(team=reader.team).select_related("user")
    roles = roles_given_by(reader.role)
    for member in members.order_by("user__username"):
        is_self = member.pk == reader.pk
        yield {
            "membership": member,
            "roles": roles if member.role in roles else [],
            "can_remove": member.role in roles and not is_self,
            "can_switch": not is_self
            and reader.is_owner
            and may_switch(reader, member.user),
        }


@require_POST
@look_up(get_owning_membership)
def team_transfer(request: Request, membership: Membership, team: Team) -> HttpResponse:
    others = team.memberships.select_related("user")
    heir = get_object_or_404(others, pk=read_id(request.POST.get("to")) or 0)
    try:
        _confirm(request, team)
        transfer_ownership(by=membership, to=heir)
    except ValueError as refusal:
        return _show_danger(request, membership, refusal=refusal)
    return redirect_with(
        request,
        f"{heir.user} now owns the team. You are an admin.",
        "team_settings",
        team.slug,
    )


@require_POST
@look_up(get_membership)
def team_leave(request: Request, membership: Membership, team: Team) -> HttpResponse:
    try:
        _confirm(request, team)
        leave(membership)
    except ValueError as refusal:
        return _show_danger(request, membership, refusal=refusal)
    return redirect_with(request, f"You have left {team}.", "home")


def _confirm(request: Request, team: Team) -> None:
    """UserError unless the team's name was typed."""
    if request.POST.get("confirmed", "").strip() != team.name:
        raise UserError(
            "teams.not_confirmed", f"Nothing changed. Type {team.name} to confirm."
        )


@require_http_methods(["GET", "HEAD", "POST"])
def team_new(request: Request) -> HttpResponse:
    """Create a team, for users who manage one already: teams share the server's
    workers.
    """
    if not request.user.memberships.filter(role__in=[Role.ADMIN, Role.OWNER]).exists():
        raise PermissionDenied("Only admins and owners can create teams.")
    form = TeamForm(request.POST or None)
    if form.is_bound and form.is_valid():
        made = create_team(**form.cleaned_data, owner=request.user)
        return redirect_with(
            request,
            f"Created {made}. You own it. Invite people below.",
            "team_invitations",
            made.slug,
        )
    return render(
        request,
        "accounts/team_new.html",
        {"form": form},
        status=422 if form.is_bound else 200,
    )


# Invitations: creating them, and the page behind the link.


@never_cache
@require_POST
@look_up(get_managing_membership)
def team_invite(request: Request, membership: Membership) -> HttpResponse:
    """Invite someone; the page shows the new link this once."""
    form = InviteForm(request.POST, by=membership, can_send=settings.MAIL_IS_SET_UP)
    if not form.is_valid():
        return _show_invitations(
            request,
            membership,
            invite_form=form,
            refusal="No invitation created. Fix the fields below.",
        )
    try:
        made, token = invite(by=membership, **form.cleaned_data)
    except ValueError as refusal:
        return _show_invitations(request, membership, refusal=refusal)
    address = link(request, reverse("invitation", args=[token]))
    context = {"invited": made, "invitation_address": address}
    if made.email and settings.MAIL_IS_SET_UP:
        try:
            send_invitation(made, address)
            context["is_sent"] = True
        except ValueError as trouble:
            context["trouble"] = trouble
    return _show_invitations(request, membership, **context)


@require_POST
@look_up(get_managing_membership)
def invitation_revoke(request: Request, team: Team, invitation_id: int) -> HttpResponse:
    invitation_ = get_object_or_404(team.invitations, pk=invitation_id)
    if revoke(invitation_, by=request.user):
        messages.success(request, "Invitation revoked.")
    else:
        messages.info(request, "The invitation was already used, revoked or expired.")
    return redirect("team_invitations", team.slug)


@login_not_required
@sensitive_post_parameters("password1", "password2")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Accept an invitation: signed-in users by a button, others by signing up or in."""
    invitation_ = find_invitation(token)
    if invitation_ is None:
        return _gone(request)
    if not request.user.is_authenticated:
        return _sign_up(request, invitation_, token)
    assert isinstance(request.user, User)
    context = {"invitation": invitation_}
    if request.method == "POST":
        try:
            member = accept(token, request.user)
        except ValueError as refusal:
            page = {**context, "refusal": refusal}
            return render(request, "accounts/invitation.html", page, status=422)
        return _welcome(request, member) if member else _gone(request)
    return render(request, "accounts/invitation.html", context)


def _sign_up(request: HttpRequest, invitation_: Invitation, token: str) -> HttpResponse:
    form = SignUpForm(request.POST or None, initial={"email": invitation_.email})
    if form.is_bound and form.is_valid():
        with transaction.atomic():
            user = form.save()
            member = accept(token, user)
            if member is None:  # someone else was faster
                transaction.set_rollback(True)
        if member is None:
            return _gone(request)
        sign_user_in(request, user, "/")
        if user.email:
            # It is verified by a mail, if there is a server for it.
            EmailAddress.objects.add_email(request, user, user.email, confirm=True)
        return _welcome(request, member)
    context = {"invitation": invitation_, "form": form, "here": request.path}
    return render(
        request,
        "accounts/invitation.html",
        context,
        status=422 if form.is_bound else 200,
    )


def _welcome(request: HttpRequest, member: Membership) -> HttpResponse:
    return redirect_with(
        request, f"You joined {member.team} as {member.role}.", "runs", member.team.slug
    )


def _gone(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/invitation_gone.html", status=410)


# What admins and owners do with one member.


def _get_member(team: Team, member_id: int) -> Membership:
    return get_object_or_404(team.memberships.select_related("user"), pk=member_id)


@require_POST
@look_up(get_managing_membership, member=_get_member)
def member_role(
    request: Request, membership: Membership, team: Team, member: Membership
) -> HttpResponse:
    role, base = request.POST.get("role", ""), request.POST.get(BASE, "")
    undo = f"?{urlencode({'changed': member.pk, 'was': member.role})}"
    try:
        return _answer(
            request,
            membership,
            lambda: change_role(by=membership, of=member, role=role, base=base),
            f"{member.user} is now {role}.",
            query=undo,
        )
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=str(member.user),
            back=reverse("team_settings", args=[team.slug]),
            choices={"role": {}},
            team=team,
            saved=last_entry(team, member, "member.role_changed"),
        )


@require_POST
@look_up(get_managing_membership, member=_get_member)
def member_remove(
    request: Request, membership: Membership, member: Membership
) -> HttpResponse:
    return _answer(
        request,
        membership,
        lambda: remove_member(by=membership, member=member),
        f"Removed {member.user} from the team.",
    )


@require_POST
@look_up(get_owning_membership, member=_get_member)
def member_deactivate(
    request: Request, membership: Membership, member: Membership
) -> HttpResponse:
    return _answer(
        request,
        membership,
        lambda: deactivate(by=membership, member=member),
        f"Deactivated {member.user}: signed out everywhere and unable to sign in.",
    )


@require_POST
@look_up(get_owning_membership, member=_get_member)
def member_reactivate(
    request: Request, membership: Membership, member: Membership
) -> HttpResponse:
    return _answer(
        request,
        membership,
        lambda: reactivate(by=membership, member=member),
        f"Reactivated {member.user}.",
    )


def _answer(
    request: Request,
    by: Membership,
    act: Callable[[], None],
    done: str,
    *,
    query: str = "",
) -> HttpResponse:
    try:
        act()
    except ValueError as refusal:
        return _show_members(request, by, refusal=refusal)
    return redirect_with(
        request, done, reverse("team_settings", args=[by.team.slug]) + query
    )
