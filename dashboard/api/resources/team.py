"""The team itself: its settings, its ownership, and leaving it."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.roles import RIGHTS, is_at_least
from dashboard.api.auth import READ, access_of

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
