"""What the team uses of what it may, and how long its things are kept: for programs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import ADMIN, READ, access_of
from dashboard.api.schemas import Change, fill
from dashboard.project.edits import Edit
from dashboard.upkeep.kept import keep, kept_by
from dashboard.upkeep.models import KEPT_DAYS, MOST_COMPLETION_DAYS
from dashboard.upkeep.quotas import standing_of

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
    return _storage(access_of(request).team)


def _storage(team: Team) -> StorageOut:
    standing, kept = standing_of(team), kept_by(team)
    return fill(
        StorageOut, standing, trash_days=kept.days, completion_days=kept.completion_days
    )


class RetentionIn(Change):
    trash_days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] | None = Field(
        default=None, description="In the trash.", examples=[14]
    )
    completion_days: Annotated[int, Field(ge=1, le=MOST_COMPLETION_DAYS)] | None = (
        Field(
            default=None,
            description="Completions, after their run's end; null: for good.",
        )
    )


@router.patch("", response=StorageOut, auth=ADMIN, summary="Set the retention")
def set_retention(request: HttpRequest, payload: RetentionIn) -> StorageOut:
    """Within the hour, what is older is deleted for good."""
    access = access_of(request)
    sent = payload.model_dump(exclude_unset=True, exclude={"was"})
    if sent.get("trash_days", 0) is None:  # as if it were left out
        del sent["trash_days"]
    edit = Edit(given=sent, was=payload.was).rename({"trash_days": "days"})
    keep(access.team, access.user, edit)
    return _storage(access.team)
