"""What the team uses of what it may, and how long its things are kept: for programs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.schemas import Input
from dashboard.upkeep.kept import Kept, keep, kept_by
from dashboard.upkeep.models import KEPT_DAYS, MOST_COMPLETION_DAYS
from dashboard.upkeep.old_completions import preview_completions
from dashboard.upkeep.quotas import standing_of
from dashboard.upkeep.retention import preview

router = Router(tags=["Team"], auth=READ)


class StorageOut(Schema):
    num_bytes: int = Field(examples=[12_400_000_000])
    max_bytes: int | None = Field(description="The quota; null: none.")
    is_full: bool
    parts: dict[str, int] = Field(
        description="Bytes, by what they are of; waiting: files to be imported.",
        examples=[{"runs": 12_000_000_000, "datasets": 400_000_000}],
    )
    measured_at: datetime
    num_runs: int = Field(description="That have not ended.", examples=[3])
    max_runs: int | None = Field(description="At once; null: no quota.")
    trash_days: int = Field(description="The trash is kept so long.", examples=[30])
    completion_days: int | None = Field(
        description="Completions are, after their run's end; null: for good."
    )


@router.get("", response=StorageOut, summary="Look at storage and quotas")
def storage(request: HttpRequest) -> StorageOut:
    """Quotas are set by who runs the server; files are measured every ten minutes."""
    team = access_of(request).team
    standing, kept = standing_of(team), kept_by(team)
    return StorageOut(
        num_bytes=standing.num_bytes,
        max_bytes=standing.max_bytes,
        is_full=standing.is_full,
        parts=standing.parts,
        measured_at=standing.measured_at,
        num_runs=standing.num_runs,
        max_runs=standing.max_runs,
        trash_days=kept.days,
        completion_days=kept.completion_days,
    )


class Trashed(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    trashed_at: datetime


class EndedRun(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    finished_at: datetime


class OldCompletionsOut(Schema):
    """Of runs that ended before so many days."""

    days: int | None = Field(description="null: kept for good.", examples=[90])
    runs: list[EndedRun]
    num_completions: int = Field(description="That would go.", examples=[120_000])
    num_bytes: int = Field(description="Of their texts.", examples=[96_000_000])
    num_kept_groups: int = Field(description="That stay, as somebody marked them.")


class RetentionOut(Schema):
    days: int = Field(examples=[14])
    runs: list[Trashed] = Field(description="In the trash for longer.")
    run_bytes: int = Field(description="Of their files.")
    datasets: list[Trashed] = Field(description="That no run or probe used.")
    num_runs_in_trash: int
    num_locked: int = Field(description="Runs that no retention reaches.")
    completions: OldCompletionsOut


def _retention(team: Team, chosen: Kept) -> RetentionOut:
    found = preview(team, chosen.days)
    old = preview_completions(team, chosen.completion_days)
    names = ("days", "runs", "run_bytes", "datasets", "num_runs_in_trash", "num_locked")
    fields = {name: getattr(found, name) for name in names}
    return RetentionOut.model_validate(
        {**fields, "completions": old}, from_attributes=True
    )


Days = Annotated[
    int | None,
    Query(
        None,
        ge=1,
        le=KEPT_DAYS,
        description="As if the trash were kept so long; without it, as it is kept.",
    ),
]
CompletionDays = Annotated[
    int | None,
    Query(
        None,
        ge=1,
        le=MOST_COMPLETION_DAYS,
        description="The same of completions, after their run's end.",
    ),
]


@router.get("/retention", response=RetentionOut, summary="Preview the retention")
def retention(
    request: HttpRequest, days: Days, completion_days: CompletionDays
) -> RetentionOut:
    """What would be deleted for good; nothing is."""
    team = access_of(request).team
    now = kept_by(team)
    chosen = Kept(
        days=days or now.days,
        completion_days=completion_days or now.completion_days,
    )
    return _retention(team, chosen)


class RetentionIn(Input):
    """What is left out stays."""

    days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] | None = Field(
        default=None, description="In the trash.", examples=[14]
    )
    completion_days: Annotated[int, Field(ge=1, le=MOST_COMPLETION_DAYS)] | None = (
        Field(
            default=None,
            description="Completions, after their run's end; null: for good.",
        )
    )


@router.put(
    "/retention", response=RetentionOut, auth=ADMIN, summary="Set the retention"
)
def set_retention(request: HttpRequest, payload: RetentionIn) -> RetentionOut:
    """Within the hour, what is older is deleted for good."""
    access = access_of(request)
    now = kept_by(access.team)
    is_named = "completion_days" in payload.model_fields_set
    chosen = Kept(
        days=payload.days or now.days,
        completion_days=payload.completion_days if is_named else now.completion_days,
    )
    keep(access.team, access.user, chosen)
    return _retention(access.team, chosen)
