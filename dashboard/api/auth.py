"""Tokens: creating, finding and revoking them; and the access of a request."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone
from ninja.security import HttpBearer

from dashboard.accounts.models import Membership, Team, User
from dashboard.accounts.services import digest, record
from dashboard.api.models import ApiToken, Scope
from dashboard.api.problems import Problem
from dashboard.project.errors import UserError

PREFIX = "cohort_"  # by which scanners for leaked secrets know one
MAX_TOKENS = 50  # of one person in one team that work
USE_PRECISION = timedelta(minutes=1)
# What a scope brings along.
INCLUDED: dict[str, frozenset[str]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.WRITE: frozenset({Scope.WRITE, Scope.READ}),
    Scope.INGEST: frozenset({Scope.INGEST}),
    Scope.ADMIN: frozenset(Scope),
}


def may_use(membership: Membership, scope: str) -> bool:
    """Tell whether the person's role allows what the scope is for."""
    if scope == Scope.ADMIN:
        return membership.can_manage
    return scope == Scope.READ or membership.can_write


@transaction.atomic
def create_token(
    *,
    membership: Membership,
    name: str,
    scopes: Collection[str],
    expires_at: datetime | None,
) -> tuple[ApiToken, str]:
    """Return the token and its text, which is not stored.

    UserError says what is wrong.
    """
    wrong = [scope for scope in scopes if not may_use(membership, scope)]
    if wrong:
        raise UserError(
            "tokens.scope_not_allowed",
            f"Your role in {membership.team} is {membership.role}, which does not "
            f"allow the scope {wrong[0]}. Remove the scope, or ask a team admin "
            "for another role.",
        )
    if working_tokens(membership).count() >= MAX_TOKENS:
        raise UserError(
            "tokens.too_many",
            f"You have {MAX_TOKENS} active tokens in {membership.team}, the "
            "maximum. Revoke an unused one.",
        )
    text = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        user=membership.user,
        team=membership.team,
        name=name,
        token_sha256=digest(text),
        hint=text[-4:],
        scopes=sorted(scopes),
        expires_at=expires_at,
    )
    detail = {"name": name, "scopes": token.scopes}
    record(membership.team, membership.user, "token.created", token, **detail)
    return token, text


@transaction.atomic
def revoke_token(*, token: ApiToken, user: User) -> bool:
    """False if it was already revoked. It stops working with the next request."""
    valid = ApiToken.objects.filter(pk=token.pk, revoked_at=None)
    if not valid.update(revoked_at=timezone.now()):
        return False
    record(token.team, user, "token.revoked", token, name=token.name)
    return True


def working_tokens(membership: Membership) -> QuerySet[ApiToken]:
    own = ApiToken.objects.filter(user=membership.user, team=membership.team)
    return own.filter(_works())


def list_tokens(team: Team) -> QuerySet[ApiToken]:
    """Everybody's, the newest first."""
    return ApiToken.objects.filter(team=team).select_related("user").order_by("-pk")


def visible_tokens(membership: Membership) -> QuerySet[ApiToken]:
    """One's own; those who manage the team see everybody's."""
    tokens = list_tokens(membership.team)
    return tokens if membership.can_manage else tokens.filter(user=membership.user)


def find_token(text: str) -> tuple[ApiToken, Membership] | None:
    """Find the token with its owner's membership; two queries.

    None if it does not work, or its owner has left the team.
    """
    tokens = ApiToken.objects.filter(_works(), token_sha256=digest(text))
    token = tokens.filter(user__is_active=True).first()
    if token is None:
        return None
    places = Membership.objects.select_related("team", "user")
    membership = places.filter(user=token.user_id, team=token.team_id).first()
    return None if membership is None else (token, membership)


def note_use(token: ApiToken) -> None:
    """Note the use at most once a minute, so that reading costs no write each time."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - USE_PRECISION:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)


def _works() -> Q:
    now = timezone.now()
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))


# Access: a program with a token acts for one person in one team.


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The facts that an operation needs about the request's sender."""

    token: ApiToken
    membership: Membership

    @property
    def team(self) -> Team:
        return self.membership.team

    @property
    def user(self) -> User:
        return self.membership.user

    @property
    def scopes(self) -> set[str]:
        """The scopes of the token, as far as the person's role allows them now."""
        scopes_given = {
            included for scope in self.token.scopes for included in INCLUDED[scope]
        }
        return {scope for scope in scopes_given if may_use(self.membership, scope)}


def read_access(request: HttpRequest) -> Access | None:
    """Read the Authorization header; None without a token that works."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    pair = find_token(text.strip()) if kind.lower() == "bearer" else None
    return Access(token=pair[0], membership=pair[1]) if pair else None


class ApiRequest(HttpRequest):
    """A request with a token: the authentication lets no other through."""

    auth: Access  # set by django-ninja


class Bearer(HttpBearer):
    """guards.guarded has found the token; this checks its scope."""

    scope: Scope | None  # None: any will do

    def authenticate(self, request: HttpRequest, token: str) -> Access | None:
        access: Access | None = getattr(request, "api_access", None)
        if access is None or self.scope is None or self.scope in access.scopes:
            return access
        message = (
            f"This operation requires the scope {self.scope}; {access.token} has "
            f"{', '.join(access.token.scopes)}. Create a token with that scope."
        )
        if any(self.scope in INCLUDED[scope] for scope in access.token.scopes):
            message = (
                f"The role of {access.user} in {access.team} is "
                f"{access.membership.role}, which does not allow the scope "
                f"{self.scope}. Ask a team admin for another role."
            )
        raise Problem(403, message, code="tokens.scope_missing")


class AnyToken(Bearer):
    scope = None


class ReadToken(Bearer):
    scope = Scope.READ


class WriteToken(Bearer):
    scope = Scope.WRITE


class IngestToken(Bearer):
    scope = Scope.INGEST


class AdminToken(Bearer):
    scope = Scope.ADMIN


ANY, READ, WRITE = AnyToken(), ReadToken(), WriteToken()
INGEST, ADMIN = IngestToken(), AdminToken()


@receiver(post_delete, sender=Membership)
def revoke_tokens(*, instance: Membership, **_kwargs: Any) -> None:
    """Revoke the tokens of a person who leaves a team, so that none works after another
    invitation.

    The membership's audit entry covers it.
    """
    valid = ApiToken.objects.filter(
        user=instance.user_id, team=instance.team_id, revoked_at=None
    )
    valid.update(revoked_at=timezone.now())
