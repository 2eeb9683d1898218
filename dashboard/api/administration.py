"""A team's administration: storage, quotas, retention, and the audit log."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.schemas import (
    LARGEST_ID,
    Change,
    Cursor,
    Limit,
    Page,
    fill,
    page_by,
    refuse_errors,
)
from dashboard.operations.audit_log import row_of
from dashboard.operations.audit_log_forms import FilterForm
from dashboard.operations.models import KEPT_DAYS, MOST_COMPLETION_DAYS
from dashboard.operations.quotas import quota_usage
from dashboard.operations.retention import change_retention, retention_of
from dashboard.project.edits import Edit

storage_router = Router(tags=["Team"], auth=READ)
router = Router(tags=["Audit log"], auth=ADMIN)
Word = Annotated[str, Query("", max_length=80)]
Day = Annotated[date | None, Query(None)]


class StorageOut(Schema):
    num_bytes: int = Field(examples=[12_400_000_000])
    max_bytes: int | None = Field(description="Storage quota. null: no quota.")
    is_full: bool
    parts: dict[str, int] = Field(
        description="Bytes by kind. `waiting`: uploaded files, not imported yet. "
        "`outside`: external runs.",
        examples=[{"runs": 12_000_000_000, "datasets": 400_000_000}],
    )
    measured_at: datetime
    num_runs: int = Field(description="Runs that have not ended.", examples=[3])
    max_runs: int | None = Field(
        description="Quota of runs that have not ended. null: no quota."
    )
    trash_days: int = Field(
        description="Days to keep data in the trash.", examples=[30]
    )
    completion_days: int | None = Field(
        description="Days to keep completions after a run's end. null: permanently."
    )


@storage_router.get("", response=StorageOut, summary="Get storage and quotas")
def storage(request: HttpRequest) -> StorageOut:
    """The server's operator sets quotas. Files are measured every 10 minutes."""
    return _storage(access_of(request).team)


def _storage(team: Team) -> StorageOut:
    usage, kept = quota_usage(team), retention_of(team)
    return fill(
        StorageOut, usage, trash_days=kept.days, completion_days=kept.completion_days
    )


class RetentionIn(Change):
    trash_days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] | None = Field(
        default=None, description="Days to keep data in the trash.", examples=[14]
    )
    completion_days: Annotated[int, Field(ge=1, le=MOST_COMPLETION_DAYS)] | None = (
        Field(
            default=None,
            description="Days to keep completions after a run's end. null: "
            "permanently.",
        )
    )


@storage_router.patch("", response=StorageOut, auth=ADMIN, summary="Set retention")
def set_retention(request: HttpRequest, payload: RetentionIn) -> StorageOut:
    """Cohort permanently deletes older data within an hour."""
    access = access_of(request)
    sent = payload.model_dump(exclude_unset=True, exclude={"was"})
    if sent.get("trash_days", 0) is None:  # as if it were left out
        del sent["trash_days"]
    edit = Edit(given=sent, was=payload.was).rename({"trash_days": "days"})
    change_retention(access.team, access.user, edit)
    return _storage(access.team)


# The audit log.


class EntryOut(Schema):
    id: int = Field(examples=[1_024])
    time: datetime
    person: str | None = Field(description="null: Cohort.", examples=["alice"])
    person_id: int | None
    verb: str = Field(examples=["run.launched"])
    object_type: str = Field(examples=["run"])
    object_id: int = Field(examples=[7])
    address: str | None = Field(examples=["192.0.2.7"])
    agent: str = Field(
        description="Browser and operating system.", examples=["Firefox 128 on Linux"]
    )
    program: str = Field(
        description="API token or command, if a program made the change."
    )
    is_erased: bool = Field(description="The person's data was erased.")
    detail: dict[str, Any] = Field(examples=[{"name": "calm-otter-7"}])


class LogFilters(Schema):
    by: Word = Field("", description="A user ID, `cohort` or `erased`.")
    verb: Word = Field("", description="Action, such as `run.launched`.")
    kind: Word = Field("", description="`object_type` of the entry.")
    number: Annotated[int | None, Query(None, ge=1, le=LARGEST_ID)] = Field(
        None, description="`object_id` of the entry."
    )
    since: Day = Field(None, description="First day, in UTC.")
    until: Day = Field(None, description="Last day, in UTC.")


@router.get("", response=Page[EntryOut], summary="Read the audit log")
def audit_log(
    request: HttpRequest, cursor: Cursor, limit: Limit, filters: Query[LogFilters]
) -> Page[Any]:
    """Newest first."""
    given = filters.model_dump(exclude_none=True)
    form = FilterForm(given, team=access_of(request).team)
    refuse_errors(form)
    return page_by(
        form.narrow(),
        lambda entry: EntryOut(**row_of(entry)),
        cursor=cursor,
        limit=limit,
    )
