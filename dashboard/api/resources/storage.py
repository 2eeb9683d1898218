"""What the team uses of what it may, and how long its trash is kept."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.schemas import Input
from dashboard.upkeep.models import KEPT_DAYS
from dashboard.upkeep.quotas import standing_of
from dashboard.upkeep.retention import Preview, days_of, preview, set_days

router = Router(tags=["Team"], auth=READ)


class StorageOut(Schema):
    num_bytes: int = Field(examples=[12_400_000_000])
    max_bytes: int | None = Field(description="The quota; null: none.")
    is_full: bool
    parts: dict[str, int] = Field(
        description="Bytes of runs, models, datasets, and files that wait.",
        examples=[{"runs": 12_000_000_000, "datasets": 400_000_000}],
    )
    measured_at: datetime
    num_runs: int = Field(description="That have not ended.", examples=[3])
    max_runs: int | None = Field(description="At once; null: no quota.")
    trash_days: int = Field(description="The trash is kept so long.", examples=[30])


@router.get("", response=StorageOut, summary="Look at storage and quotas")
def storage(request: HttpRequest) -> StorageOut:
    """Quotas are set by who runs the server; files are measured once an hour."""
    team = access_of(request).team
    standing = standing_of(team)
    return StorageOut(
        num_bytes=standing.num_bytes,
        max_bytes=standing.max_bytes,
        is_full=standing.is_full,
        parts=standing.parts,
        measured_at=standing.measured_at,
        num_runs=standing.num_runs,
        max_runs=standing.max_runs,
        trash_days=days_of(team),
    )


class Trashed(Schema):
    id: int = Field(examples=[7])
    name: str = Field(examples=["calm-otter-7"])
    trashed_at: datetime


class RetentionOut(Schema):
    days: int = Field(examples=[14])
    runs: list[Trashed] = Field(description="In the trash for longer.")
    run_bytes: int = Field(description="Of their files.")
    datasets: list[Trashed] = Field(description="That no run or probe used.")
    num_runs_in_trash: int
    num_locked: int = Field(description="Runs that no retention reaches.")

    @classmethod
    def of(cls, found: Preview) -> RetentionOut:
        return cls(
            days=found.days,
            runs=[_trashed(run) for run in found.runs],
            run_bytes=found.run_bytes,
            datasets=[_trashed(dataset) for dataset in found.datasets],
            num_runs_in_trash=found.num_runs_in_trash,
            num_locked=found.num_locked,
        )


def _trashed(row: object) -> Trashed:
    return Trashed.model_validate(row, from_attributes=True)


Days = Annotated[
    int | None,
    Query(
        None,
        ge=1,
        le=KEPT_DAYS,
        description="As if the trash were kept so long; without it, as it is kept.",
    ),
]


@router.get("/retention", response=RetentionOut, summary="Preview the retention")
def retention(request: HttpRequest, days: Days) -> RetentionOut:
    """What would be deleted for good; nothing is."""
    team = access_of(request).team
    return RetentionOut.of(preview(team, days or days_of(team)))


class RetentionIn(Input):
    days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] = Field(examples=[14])


@router.put(
    "/retention", response=RetentionOut, auth=ADMIN, summary="Set the retention"
)
def set_retention(request: HttpRequest, payload: RetentionIn) -> RetentionOut:
    """Within the hour, what has been in the trash for longer is deleted for good."""
    access = access_of(request)
    set_days(access.team, access.user, payload.days)
    return RetentionOut.of(preview(access.team, payload.days))
