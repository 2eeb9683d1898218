"""Who asks: a program with a token, for one person in one team."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from ninja.security import HttpBearer

from dashboard.accounts.models import Membership, Team, User
from dashboard.api.models import ApiToken, Scope
from dashboard.api.problems import Problem
from dashboard.api.tokens import INCLUDED, find_token, may_use


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What an operation needs to know of who asks."""

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
        """What the token may do, as far as the person's role allows it now."""
        given = {one for scope in self.token.scopes for one in INCLUDED[scope]}
        return {scope for scope in given if may_use(self.membership, scope)}


def read_access(request: HttpRequest) -> Access | None:
    """Of the Authorization header; None without a token that works."""
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    found = find_token(text.strip()) if kind.lower() == "bearer" else None
    return Access(token=found[0], membership=found[1]) if found else None


def access_of(request: HttpRequest) -> Access:
    """Within an operation, which is only called with a token."""
    access: Access = request.auth  # type: ignore[attr-defined]  # set by django-ninja
    return access


class Bearer(HttpBearer):
    """The entrance has looked the token up; this asks what it may do."""

    scope: Scope | None  # None: any will do

    def authenticate(self, request: HttpRequest, token: str) -> Access | None:
        access: Access | None = getattr(request, "api_access", None)
        if access is None or self.scope is None or self.scope in access.scopes:
            return access
        raise Problem(403, _refusal(access, self.scope))


def _refusal(access: Access, wanted: str) -> str:
    if any(wanted in INCLUDED[scope] for scope in access.token.scopes):
        return (
            f"The role of {access.user} in {access.team} is "
            f"{access.membership.role}, which does not allow the scope "
            f"{wanted}. Ask an admin of the team."
        )
    return (
        f"This takes a token with the scope {wanted}; the scopes of "
        f"{access.token} are {', '.join(access.token.scopes)}. Make one with it."
    )


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
