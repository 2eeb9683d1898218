"""Who is in the team, as what."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.access import require_owner
from dashboard.accounts.members import (
    change_role,
    deactivate,
    reactivate,
    remove_member,
)
from dashboard.accounts.models import Membership
from dashboard.api.auth import ADMIN, READ, Access, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import Problem
from dashboard.api.schemas import Done, Id, Input, Person

router = Router(tags=["Team"], auth=READ)


class MemberOut(Schema):
    id: int = Field(examples=[3])
    person: Person
    role: str = Field(description="viewer, member, admin or owner", examples=["member"])
    is_active: bool = Field(description="False: deactivated.")
    joined_at: datetime

    @classmethod
    def of(cls, row: Membership) -> MemberOut:
        person = Person.of(row.user)
        assert person is not None
        return cls(
            id=row.pk,
            person=person,
            role=row.role,
            is_active=row.user.is_active,
            joined_at=row.created_at,
        )


@router.get("", response=Page[MemberOut], summary="List members")
def members(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Who came first is first."""
    found = access_of(request).team.memberships.select_related("user")
    return page_by(
        found,
        MemberOut.of,
        cursor=cursor,
        limit=limit,
        key="pk",
        total=found.count(),
    )


@router.get("/{member_id}", response=MemberOut, summary="Look at a member")
def member(request: HttpRequest, member_id: Id) -> MemberOut:
    return MemberOut.of(_find(access_of(request), member_id))


class RoleIn(Input):
    role: Literal["viewer", "member", "admin", "owner"] = Field(examples=["admin"])


@router.patch(
    "/{member_id}", response=MemberOut, auth=ADMIN, summary="Change a member's role"
)
def change_member_role(
    request: HttpRequest, member_id: Id, payload: RoleIn
) -> MemberOut:
    """Owners are made and unmade by owners; one stays."""
    access = access_of(request)
    of = _find(access, member_id)
    _act(lambda: change_role(by=access.membership, of=of, role=payload.role))
    return MemberOut.of(_find(access, member_id))


@router.post(
    "/{member_id}/deactivate",
    response=Done,
    auth=ADMIN,
    summary="Deactivate a person",
)
def deactivate_member(request: HttpRequest, member_id: Id) -> Done:
    """By an owner of every team that the person is in. Signed out everywhere at once;
    their tokens work no more."""
    access = access_of(request)
    owner, found = require_owner(access.membership), _find(access, member_id)
    _act(lambda: deactivate(by=owner, member=found))
    return Done(done=True)


@router.post(
    "/{member_id}/reactivate",
    response=Done,
    auth=ADMIN,
    summary="Reactivate a person",
)
def reactivate_member(request: HttpRequest, member_id: Id) -> Done:
    """They can sign in again. By an owner."""
    access = access_of(request)
    owner, found = require_owner(access.membership), _find(access, member_id)
    _act(lambda: reactivate(by=owner, member=found))
    return Done(done=True)


@router.delete("/{member_id}", response=Done, auth=ADMIN, summary="Remove a member")
def remove_team_member(request: HttpRequest, member_id: Id) -> Done:
    """What they made stays. An owner is removed by an owner."""
    access = access_of(request)
    found = _find(access, member_id)
    _act(lambda: remove_member(by=access.membership, member=found))
    return Done(done=True)


def _act(act: Callable[[], None]) -> None:
    try:
        act()
    except ValueError as refusal:
        raise Problem(409, str(refusal)) from refusal


def _find(access: Access, member_id: int) -> Membership:
    members = access.team.memberships.select_related("user", "team")
    found = members.filter(pk=member_id).first()
    if found is None:
        raise Http404(f"{access.team} has no member {member_id}.")
    return found
