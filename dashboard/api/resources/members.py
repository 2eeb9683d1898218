"""Who is in the team, as what."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.db import transaction
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
from dashboard.accounts.models import Membership, Team
from dashboard.api.auth import ADMIN, READ, Access, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import or_conflict
from dashboard.api.schemas import Change, Done, Id, Person

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
    return page_by(found, MemberOut.of, cursor=cursor, limit=limit, key="pk")


class MemberChange(Change):
    role: Literal["viewer", "member", "admin", "owner"] | None = Field(
        default=None,
        description="Owners are made and unmade by owners; one stays.",
        examples=["admin"],
    )
    is_active: bool | None = Field(
        default=None,
        description="By an owner of every team that the person is in. False: they are "
        "signed out, and their tokens work no more.",
    )


@router.patch("/{member_id}", response=MemberOut, auth=ADMIN, summary="Change a member")
def change_member(
    request: HttpRequest, member_id: Id, payload: MemberChange
) -> MemberOut:
    """A member's role, and whether the person can sign in."""
    access = access_of(request)
    of = _find(access, member_id)
    with or_conflict(), transaction.atomic():
        Team.objects.select_for_update().get(pk=access.team.pk)  # first, as below
        sent = payload.over(MemberOut.of(_find(access, member_id)))
        role, is_active = sent.get("role"), sent.get("is_active")
        if role is not None:
            change_role(by=access.membership, of=of, role=role)
        if is_active is not None:
            switch = reactivate if is_active else deactivate
            switch(by=require_owner(access.membership), member=of)
    return MemberOut.of(_find(access, member_id))


@router.delete("/{member_id}", response=Done, auth=ADMIN, summary="Remove a member")
def remove_team_member(request: HttpRequest, member_id: Id) -> Done:
    """What they made stays. An owner is removed by an owner."""
    access = access_of(request)
    found = _find(access, member_id)
    with or_conflict():
        remove_member(by=access.membership, member=found)
    return Done(done=True)


def _find(access: Access, member_id: int) -> Membership:
    members = access.team.memberships.select_related("user", "team")
    found = members.filter(pk=member_id).first()
    if found is None:
        raise Http404(f"{access.team} has no member {member_id}.")
    return found
