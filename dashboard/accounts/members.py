"""Members of a team and their roles, invitations, and checks of a team's quotas.

Functions take the membership of the acting user. They lock the team's row first, so
that one owner stays when two leave at the same time.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from smtplib import SMTPException

from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.mail import send_mail
from django.db import models, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from dashboard.accounts.access import roles_given_by
from dashboard.accounts.models import Invitation, Membership, Role, Team, User
from dashboard.accounts.services import digest, record
from dashboard.project.errors import UserError
from dashboard.project.mail import why_not_mailed
from dashboard.web.edits import find_changes

INVITATION_LIFETIME = timedelta(days=7)
MAX_OPEN = 100  # invitations of a team
MAX_A_DAY = 200  # of a team, including revoked ones: each may be an e-mail to anyone


@transaction.atomic
def change_role(*, by: Membership, of: Membership, role: str, base: str = "") -> None:
    """EditConflict: another role was set since `base`."""
    actor, member = _locked(by, of)
    if role not in Role.values:
        raise UserError(
            "members.bad_role",
            f"The role must be one of {', '.join(Role.values)}; got {role!r}.",
        )
    if {role, member.role} - set(roles_given_by(actor.role)):
        raise UserError("members.role_too_low", _beyond(actor, member))
    if not find_changes({"role": member.role}, {"role": role}, base):
        return
    if member.is_owner:
        _leave_an_owner(member, "change role")
    before, member.role = member.role, role
    member.save(update_fields=["role"])
    _record(actor, "member.role_changed", member, before=before, after=role)


@transaction.atomic
def remove_member(*, by: Membership, member: Membership) -> None:
    actor, gone = _locked(by, member)
    if gone.role not in roles_given_by(actor.role):
        raise UserError("members.role_too_low", _beyond(actor, gone))
    if gone.is_owner:
        _leave_an_owner(gone, "be removed")
    _record(actor, "member.removed", gone, role=gone.role)
    gone.delete()


@transaction.atomic
def leave(membership: Membership) -> None:
    member, _ = _locked(membership, membership)
    if member.is_owner:
        _leave_an_owner(member, "leave")
    _record(member, "member.left", member, role=member.role)
    member.delete()


@transaction.atomic
def transfer_ownership(*, by: Membership, to: Membership) -> None:
    """Make the other member an owner, and the acting one an admin."""
    actor, heir = _locked(by, to)
    if not actor.is_owner:
        raise UserError(
            "members.not_owner",
            f"Only an owner can transfer ownership; your role is {actor.role}.",
        )
    if heir.pk == actor.pk:
        raise UserError(
            "members.already_owner", "You already own the team. Choose someone else."
        )
    if not heir.user.is_active:
        raise UserError(
            "members.deactivated", f"{heir.user} is deactivated. Choose someone else."
        )
    before = heir.role
    Membership.objects.filter(pk=heir.pk).update(role=Role.OWNER)
    Membership.objects.filter(pk=actor.pk).update(role=Role.ADMIN)
    _record(actor, "team.transferred", heir, before=before)


@transaction.atomic
def deactivate(*, by: Membership, member: Membership) -> None:
    person = _person_of(by, member)
    if person.pk == by.user_id:
        raise UserError(
            "members.own_account",
            "You cannot deactivate yourself. Leave the team instead.",
        )
    switch_person(person, is_active=False, by=by.user)


@transaction.atomic
def reactivate(*, by: Membership, member: Membership) -> None:
    switch_person(_person_of(by, member), is_active=True, by=by.user)


@transaction.atomic
def switch_person(person: User, *, is_active: bool, by: User | None) -> None:
    """Deactivating ends all sessions, and no link or token of the person works any
    more.
    """
    if person.is_active == is_active:
        return
    person.is_active = is_active
    person.save(update_fields=["is_active"])
    if not is_active:
        end_sessions(person)
    verb = "person.reactivated" if is_active else "person.deactivated"
    for team in Team.objects.filter(members=person):
        record(team, by, verb, person, username=person.username)


def end_sessions(person: User, *, but: str = "") -> int:
    """Sign the person out everywhere, `but` from the session of this key."""
    ended = 0
    for session in Session.objects.exclude(session_key=but).iterator():
        if session.get_decoded().get("_auth_user_id") == str(person.pk):
            session.delete()
            ended += 1
    return ended


def may_switch(by: Membership, person: User) -> bool:
    """Does this owner own every team that the person is in?"""
    owned = Membership.objects.filter(user=by.user_id, role=Role.OWNER)
    others = person.memberships.exclude(team__in=owned.values("team"))
    return by.is_owner and not others.exists()


def _person_of(by: Membership, member: Membership) -> User:
    actor, locked = _locked(by, member)
    if not may_switch(actor, locked.user):
        raise UserError(
            "members.in_other_teams",
            f"You can deactivate {locked.user} only if you own every team they are "
            "in. Remove them from this team, or ask the operator to run manage.py "
            "deactivate.",
        )
    return locked.user


def _locked(by: Membership, other: Membership) -> tuple[Membership, Membership]:
    """Lock both and read them again; UserError if one has left."""
    Team.objects.select_for_update().get(pk=by.team_id)
    of_team = Membership.objects.select_related("user", "team").filter(team=by.team_id)
    by_pk = of_team.in_bulk([by.pk, other.pk])
    if by.pk not in by_pk or other.pk not in by_pk:
        raise UserError(
            "members.left_team", "Not changed: this person has left the team."
        )
    return by_pk[by.pk], by_pk[other.pk]


def _leave_an_owner(member: Membership, what: str) -> None:
    others = Membership.objects.filter(
        team=member.team_id, role=Role.OWNER, user__is_active=True
    ).exclude(pk=member.pk)
    if not others.exists():
        raise UserError(
            "members.last_owner",
            f"{member.user} is the last owner of {member.team} and cannot {what}. "
            "Transfer the ownership first.",
        )


def _beyond(actor: Membership, member: Membership) -> str:
    return (
        f"Your role, {actor.role}, cannot make this change to {member.user} "
        f"({member.role}). Ask an owner of the team."
        if member.is_owner or actor.can_manage
        else f"Your role is {actor.role}. Only admins and owners can change members."
    )


def _record(actor: Membership, verb: str, member: Membership, **detail: str) -> None:
    name = member.user.username
    record(actor.team, actor.user, verb, member.user, username=name, **detail)


@transaction.atomic
def invite(*, by: Membership, role: str, email: str = "") -> tuple[Invitation, str]:
    """Create an invitation with its token, which is not stored."""
    if role == Role.OWNER or role not in roles_given_by(by.role):
        raise UserError(
            "invitations.role_too_low",
            f"Your role, {by.role}, cannot invite people as {role}.",
        )
    if open_invitations(by.team).count() >= MAX_OPEN:
        raise UserError(
            "invitations.too_many_open",
            f"The team has {MAX_OPEN} open invitations, the maximum. Revoke one.",
        )
    since = timezone.now() - timedelta(days=1)
    made = Invitation.objects.filter(team=by.team, created_at__gt=since).count()
    if made >= MAX_A_DAY:
        raise UserError(
            "invitations.too_many",
            f"The team created {made} invitations in 24 hours, the maximum. Wait, or "
            "share an open link.",
        )
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        team=by.team,
        role=role,
        email=email,
        token_sha256=digest(token),
        created_by=by.user,
        expires_at=timezone.now() + INVITATION_LIFETIME,
    )
    record(by.team, by.user, "invitation.created", invitation, role=role, email=email)
    return invitation, token


def send_invitation(invitation: Invitation, address: str) -> None:
    """ValueError if the mail server rejects it."""
    assert settings.MAIL_IS_SET_UP, "no mail server is set up"
    who = invitation.created_by
    text = (
        f"{who} invites you to the team {invitation.team} on Cohort, as "
        f"{invitation.role}.\n\n{address}\n\nThe link works once, until "
        f"{invitation.expires_at:%Y-%m-%d %H:%M} UTC. If you don't know {who}, "
        "ignore this e-mail.\n"
    )
    subject = f"Invitation to {invitation.team} on Cohort"
    try:
        send_mail(subject, text, None, [invitation.email])
    except (SMTPException, OSError) as error:
        raise UserError("invitations.not_sent", why_not_mailed(error)) from error


def open_invitations(team: Team) -> models.QuerySet[Invitation]:
    return _open().filter(team=team).select_related("created_by").order_by("-pk")


def find_invitation(token: str) -> Invitation | None:
    """Find the invitation, while it works; this does not use it up."""
    matches = _open().filter(token_sha256=digest(token))
    return matches.select_related("team", "created_by").first()


@transaction.atomic
def revoke(invitation: Invitation, *, by: User) -> bool:
    """False: it was used, revoked or expired before."""
    is_won = _open().filter(pk=invitation.pk).update(revoked_at=timezone.now())
    if is_won:
        record(invitation.team, by, "invitation.revoked", invitation)
    return bool(is_won)


@transaction.atomic
def accept(token: str, user: User) -> Membership | None:
    """Create the membership, for the first caller only;

    None: the invitation no longer works.
    """
    invitation = find_invitation(token)
    # Of two requests at the same time, only one finds used_at empty.
    now = timezone.now()
    if invitation is None or not _open().filter(pk=invitation.pk).update(
        used_at=now, used_by=user
    ):
        return None
    member, is_new = Membership.objects.get_or_create(
        team=invitation.team, user=user, defaults={"role": invitation.role}
    )
    if not is_new:
        raise UserError(
            "invitations.already_member",
            f"You are already in {invitation.team}, as {member.role}.",
        )
    record(
        invitation.team, user, "invitation.accepted", invitation, role=invitation.role
    )
    return member


def _open() -> models.QuerySet[Invitation]:
    """Invitations whose creator still manages the team, so that no one leaves a way
    back in.
    """
    by = Membership.objects.filter(
        team=models.OuterRef("team"),
        user=models.OuterRef("created_by"),
        user__is_active=True,
        role__in=[Role.ADMIN, Role.OWNER],
    )
    return Invitation.objects.filter(
        models.Exists(by), used_at=None, revoked_at=None, expires_at__gt=timezone.now()
    )


# Quotas belong to a higher floor than all that they count, so they are named by string.


def check_storage(team: Team, num_bytes: int, *, purpose: str) -> None:
    """ValueError, in words, where so much more is beyond the team's quota."""
    import_string("dashboard.operations.quotas.check_storage")(
        team, num_bytes, purpose=purpose
    )


def check_runs(team: Team) -> None:
    """ValueError if the team's quota of runs is reached. Call it in a transaction."""
    import_string("dashboard.operations.quotas.check_runs")(team)
