"""Who the token is."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api import limits
from dashboard.api.auth import ANY, access_of
from dashboard.api.schemas import Person

router = Router(tags=["Token"])


class TeamOut(Schema):
    slug: str = Field(examples=["lab"])
    name: str = Field(examples=["Lab"])


class Me(Schema):
    person: Person
    team: TeamOut
    role: str = Field(examples=["member"])
    scopes: list[str] = Field(
        description="What the token may do as the person's role is now.",
        examples=[["read", "write"]],
    )
    token: str = Field(examples=["laptop (…x4Qz)"])
    expires_at: datetime | None
    requests_per_minute: int = Field(examples=[600])


@router.get("/me", response=Me, auth=ANY, summary="Who asks")
def me(request: HttpRequest) -> Me:
    """The person, the team and the scopes of the token."""
    access = access_of(request)
    is_ingest = access.token.scopes == ["ingest"]
    most = limits.MAX_OF_INGEST if is_ingest else limits.MAX_OF_TOKEN
    person = Person.of(access.user)
    assert person is not None
    return Me(
        person=person,
        team=TeamOut(slug=access.team.slug, name=access.team.name),
        role=access.membership.role,
        scopes=sorted(access.scopes),
        token=str(access.token),
        expires_at=access.token.expires_at,
        requests_per_minute=most,
    )
