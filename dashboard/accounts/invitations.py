"""Links by which somebody joins a team: once, within seven days, until revoked.

They are worth what their maker may do now: who no longer manages the team has left no
way back in."""

from __future__ import annotations

import secrets
from datetime import timedelta
from smtplib import SMTPException

from django.conf import settings
from django.core.mail import send_mail
from django.db import models, transaction
from django.utils import timezone

from dashboard.accounts.models import Invitation, Membership, Role, Team, User
from dashboard.accounts.roles import roles_given_by
from dashboard.accounts.services import digest, record
from dashboard.project.mail import why_not_mailed

LIFETIME = timedelta(days=7)
MOST_OPEN = 100  # of a team
MOST_A_DAY = 200  # of a team, those revoked too: each may be a letter to anybody


@transaction.atomic
def invite(*, by: Membership, role: str, email: str = "") -> tuple[Invitation, str]:
    """The invitation with its token, which is nowhere kept."""
    if role == Role.OWNER or role not in roles_given_by(by.role):
        raise ValueError(
            f"Your role is {by.role}, which can't invite somebody as {role}."
        )
    if open_invitations(by.team).count() >= MOST_OPEN:
        raise ValueError(
            f"{MOST_OPEN} invitations are open, the most of a team. Revoke some first."
        )
    since = timezone.now() - timedelta(days=1)
    made = Invitation.objects.filter(team=by.team, created_at__gt=since).count()
    if made >= MOST_A_DAY:
        raise ValueError(
            f"{made} invitations were made within a day, the most of a team. Wait, or "
            "pass an open link on."
        )
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        team=by.team,
        role=role,
        email=email,
        token_sha256=digest(token),
        created_by=by.user,
        expires_at=timezone.now() + LIFETIME,
    )
    record(by.team, by.user, "invitation.created", invitation, role=role, email=email)
    return invitation, token


def send_invitation(invitation: Invitation, address: str) -> None:
    """ValueError where the mail server does not take it."""
    assert settings.MAIL_IS_SET_UP, "nothing is sent without a mail server"
    who = invitation.created_by
    text = (
        f"{who} invites you to the team {invitation.team} on Cohort, as "
        f"{invitation.role}.\n\n{address}\n\nThe link works once, until "
        f"{invitation.expires_at:%Y-%m-%d %H:%M} UTC. If you don't know {who}, "
        "ignore it.\n"
    )
    subject = f"Invitation to {invitation.team} on Cohort"
    try:
        send_mail(subject, text, None, [invitation.email])
    except (SMTPException, OSError) as error:
        raise ValueError(why_not_mailed(error)) from error


def open_invitations(team: Team) -> models.QuerySet[Invitation]:
    return _open().filter(team=team).select_related("created_by").order_by("-pk")


def find_invitation(token: str) -> Invitation | None:
    """The invitation, while it works; looking does not use it up."""
    found = _open().filter(token_sha256=digest(token))
    return found.select_related("team", "created_by").first()


@transaction.atomic
def revoke(invitation: Invitation, *, by: User) -> bool:
    """False: it was used, revoked or expired before."""
    is_won = _open().filter(pk=invitation.pk).update(revoked_at=timezone.now())
    if is_won:
        record(invitation.team, by, "invitation.revoked", invitation)
    return bool(is_won)


@transaction.atomic
def accept(token: str, user: User) -> Membership | None:
    """The new membership, for the first caller only; None: it works no more."""
    found = find_invitation(token)
    # Of two requests at the same time, only one finds used_at empty.
    now = timezone.now()
    if found is None or not _open().filter(pk=found.pk).update(
        used_at=now, used_by=user
    ):
        return None
    member, is_new = Membership.objects.get_or_create(
        team=found.team, user=user, defaults={"role": found.role}
    )
    if not is_new:
        raise ValueError(f"You are in {found.team} already, as {member.role}.")
    record(found.team, user, "invitation.accepted", found, role=found.role)
    return member


def _open() -> models.QuerySet[Invitation]:
    by = Membership.objects.filter(
        team=models.OuterRef("team"),
        user=models.OuterRef("created_by"),
        user__is_active=True,
        role__in=[Role.ADMIN, Role.OWNER],
    )
    return Invitation.objects.filter(
        models.Exists(by), used_at=None, revoked_at=None, expires_at__gt=timezone.now()
    )
