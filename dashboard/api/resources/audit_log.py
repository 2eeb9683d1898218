"""Who did what to what, when, from where; nothing changes it."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import ADMIN, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.schemas import LARGEST_ID
from dashboard.auditlog.exports import row_of
from dashboard.auditlog.forms import FilterForm

router = Router(tags=["Audit log"], auth=ADMIN)
Word = Annotated[str, Query("", max_length=80)]
Day = Annotated[date | None, Query(None)]


class EntryOut(Schema):
    id: int = Field(examples=[1_024])
    time: datetime
    person: str | None = Field(description="null: Cohort itself.", examples=["alice"])
    person_id: int | None
    verb: str = Field(examples=["run.launched"])
    object_type: str = Field(examples=["run"])
    object_id: int = Field(examples=[7])
    address: str | None = Field(examples=["192.0.2.7"])
    agent: str = Field(description="The browser.", examples=["Firefox 128 on Linux"])
    program: str = Field(description="Where a program did it.")
    is_erased: bool = Field(description="Who it was is told no more.")
    detail: dict[str, Any] = Field(examples=[{"name": "calm-otter-7"}])


class LogFilters(Schema):
    by: Word = Field("", description="A person's number; cohort: itself; or erased.")
    verb: Word = Field("", description="As entries of the team have it.")
    kind: Word = Field("", description="The object_type.")
    number: Annotated[int | None, Query(None, ge=1, le=LARGEST_ID)] = Field(
        None, description="The object_id."
    )
    since: Day = Field(None, description="From this day, in UTC.")
    until: Day = Field(None, description="To this day.")


@router.get("", response=Page[EntryOut], summary="Read the audit log")
def audit_log(
    request: HttpRequest, cursor: Cursor, limit: Limit, filters: Query[LogFilters]
) -> Page[Any]:
    """The newest first."""
    found = _form(access_of(request).team, filters).narrow()
    return page_by(
        found, lambda entry: EntryOut(**row_of(entry)), cursor=cursor, limit=limit
    )


def _form(team: Team, filters: LogFilters) -> FilterForm:
    given = {n: v for n, v in filters.model_dump().items() if v is not None}
    form = FilterForm(given, team=team)
    refuse_errors(form, place="query")
    return form
