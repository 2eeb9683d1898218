"""The team itself: its settings, its ownership, and leaving it."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.access import require_owner
from dashboard.accounts.members import leave, transfer_ownership
from dashboard.accounts.roles import RIGHTS, is_at_least
from dashboard.api.auth import ADMIN, READ, WRITE, access_of
from dashboard.api.problems import Problem
from dashboard.api.schemas import LARGEST_ID, Done, Input

router = Router(tags=["Team"], auth=READ)


class RightOut(Schema):
    text: str = Field(examples=["Launch, stop, change and delete runs"])
    least_role: str = Field(examples=["member"])
    is_held: bool = Field(description="By the token's person.")


class TeamDetail(Schema):
    slug: str = Field(examples=["lab"])
    name: str = Field(examples=["Lab"])
    role: str = Field(description="Of the token's person.", examples=["admin"])
    num_members: int = Field(examples=[5])
    rights: list[RightOut]


@router.get("", response=TeamDetail, summary="Look at the team")
def team(request: HttpRequest) -> TeamDetail:
    """With what each role may do."""
    access = access_of(request)
    role = access.membership.role
    return TeamDetail(
        slug=access.team.slug,
        name=access.team.name,
        role=role,
        num_members=access.team.memberships.count(),
        rights=[
            RightOut(
                text=right.text,
                least_role=right.least,
                is_held=is_at_least(role, right.least),
            )
            for right in RIGHTS
        ],
    )


class TransferIn(Input):
    member_id: Annotated[int, Field(ge=1, le=LARGEST_ID)] = Field(examples=[3])


@router.post("/transfer", response=Done, auth=ADMIN, summary="Transfer the ownership")
def transfer_team(request: HttpRequest, payload: TransferIn) -> Done:
    """An owner makes a member the owner, and is an admin from then on."""
    access = access_of(request)
    owner = require_owner(access.membership)
    others = access.team.memberships.select_related("user")
    heir = others.filter(pk=payload.member_id).first()
    if heir is None:
        raise Http404(f"{access.team} has no member {payload.member_id}.")
    try:
        transfer_ownership(by=owner, to=heir)
    except ValueError as refusal:
        raise Problem(409, str(refusal)) from refusal
    return Done(done=True)


class LeaveIn(Input):
    confirm: Literal[True] = Field(description="That you mean it.", examples=[True])


@router.post("/leave", response=Done, auth=WRITE, summary="Leave the team")
def leave_team(request: HttpRequest, payload: LeaveIn) -> Done:
    """The token's person goes, and all their tokens work no more. The last owner
    transfers the team first."""
    try:
        leave(access_of(request).membership)
    except ValueError as refusal:
        raise Problem(409, str(refusal)) from refusal
    return Done(done=True)
