"""The team's tokens, for those who manage it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import ADMIN, ANY, access_of
from dashboard.api.models import ApiToken
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.schemas import Done, Id, Person, fill
from dashboard.api.tokens import list_tokens, revoke_token

router = Router(tags=["Token"], auth=ADMIN)
own = Router(tags=["Token"], auth=ANY)


class TokenOut(Schema):
    id: int = Field(examples=[3])
    name: str = Field(examples=["nightly"])
    hint: str = Field(description="Its last letters.", examples=["x4Qz"])
    person: Person | None
    scopes: list[str] = Field(examples=[["read"]])
    state: str = Field(
        description="active, expired, revoked or suspended: its person is deactivated",
        examples=["active"],
    )
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


def _token(token: ApiToken) -> TokenOut:
    return fill(TokenOut, token, person=Person.of(token.user))


@router.get("", response=Page[TokenOut], summary="List tokens")
def tokens(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Everybody's in the team, the newest first. Their texts are nowhere kept."""
    found = list_tokens(access_of(request).team)
    return page_by(found, _token, cursor=cursor, limit=limit)


@router.delete("/{token_id}", response=Done, summary="Revoke a token")
def delete_token(request: HttpRequest, token_id: Id) -> Done:
    """It works no more from the next request on. Whose token it is may do so without
    the scope admin: `DELETE /me/token`."""
    return _revoke(request, _find(request, token_id))


def _find(request: HttpRequest, token_id: int) -> ApiToken:
    team = access_of(request).team
    found = list_tokens(team).filter(pk=token_id).first()
    if found is None:
        raise Http404(f"{team} has no token {token_id}.")
    return found


@own.delete("/token", response=Done, summary="Revoke the token that asks")
def revoke_own_token(request: HttpRequest) -> Done:
    """For a program that is done with it, or has lost it."""
    return _revoke(request, access_of(request).token)


def _revoke(request: HttpRequest, found: ApiToken) -> Done:
    if revoke_token(token=found, user=access_of(request).user):
        return Done(done=True)
    return Done(done=False, detail="It was revoked before.")
