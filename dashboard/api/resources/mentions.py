"""Comments that name the token's person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.schemas import LARGEST_ID, Done, Input, Person
from dashboard.samples.annotations.mentions import mark_seen, mentions_of
from dashboard.samples.annotations.models import Mention

router = Router(tags=["Mentions"], auth=READ)


class MentionOut(Schema):
    id: int = Field(examples=[6])
    text: str = Field(examples=["@alice, is this a hack?"])
    by: Person | None
    run_id: int = Field(examples=[7])
    step: int = Field(examples=[40])
    prompt_index: int = Field(examples=[17])
    position: int | None = Field(description="Of the completion; null: the group.")
    created_at: datetime
    seen_at: datetime | None = Field(description="null: it is new.")


def _mention(row: Mention) -> MentionOut:
    comment = row.comment
    return MentionOut(
        id=row.pk,
        text=comment.text,
        by=Person.of(comment.user),
        run_id=comment.group.run_id,
        step=comment.group.step,
        prompt_index=comment.group.prompt_index,
        position=comment.position,
        created_at=comment.created_at,
        seen_at=row.seen_at,
    )


@router.get("", response=Page[MentionOut], summary="List mentions")
def mentions(
    request: HttpRequest,
    cursor: Cursor,
    limit: Limit,
    is_new: Annotated[bool, Query(False, description="Only those not yet seen.")],
) -> Page[Any]:
    """In comments of this team, the newest first. Reading does not mark them seen."""
    access = access_of(request)
    found = mentions_of(access.user, access.team)
    if is_new:
        found = found.filter(seen_at=None)
    return page_by(found, _mention, cursor=cursor, limit=limit, total=found.count())


class SeenIn(Input):
    ids: list[Annotated[int, Field(ge=1, le=LARGEST_ID)]] = Field(
        min_length=1, max_length=1_000, examples=[[6]]
    )


@router.post("/seen", response=Done, auth=WRITE, summary="Mark mentions as seen")
def mark_mentions_seen(request: HttpRequest, payload: SeenIn) -> Done:
    """One's own; other numbers are passed over."""
    access = access_of(request)
    own = mentions_of(access.user, access.team).filter(pk__in=payload.ids)
    mark_seen(access.user, list(own.values_list("pk", flat=True)))
    return Done(done=True)
