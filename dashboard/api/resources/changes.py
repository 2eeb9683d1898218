"""What may change of a run after its launch: its steps and its intervals."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.problems import or_conflict, refuse_field
from dashboard.api.schemas import Id, Input, Person, fill
from dashboard.project.edits import Edit
from dashboard.runs.changes import (
    MAX_STEPS,
    change_run,
    extend_run,
    interval_fields,
    next_step,
    setting_of,
)
from dashboard.runs.models import SettingChange
from dashboard.runs.queries import get_run, list_changes

router = Router(tags=["Runs"], auth=READ)


class RunChangeOut(Schema):
    number: int = Field(examples=[1])
    before: dict[str, int] = Field(examples=[{"optim.num_steps": 200}])
    after: dict[str, int] = Field(examples=[{"optim.num_steps": 400}])
    by: Person | None
    asked_at: datetime
    heard_step: int | None = Field(description="It holds behind this step; null: yet.")


def _change(row: SettingChange) -> RunChangeOut:
    return fill(RunChangeOut, row, by=Person.of(row.actor))


class RunChangesOut(Schema):
    num_steps: int = Field(examples=[400])
    first_step: int = Field(description="The first that an extension could change.")
    settings: dict[str, int] = Field(
        description="That may change beside the number of steps.",
        examples=[{"checkpoint.every_steps": 50}],
    )
    items: list[RunChangeOut]


@router.get("/{run_id}/changes", response=RunChangesOut, summary="List a run's changes")
def run_changes(request: HttpRequest, run_id: Id) -> RunChangesOut:
    """After its launch, and what could be changed now."""
    return _read(access_of(request).team, run_id)


def _read(team: Team, run_id: int) -> RunChangesOut:
    run = get_run(team, run_id)
    paths = [] if run.is_imported else [field.path for field in interval_fields()]
    return RunChangesOut(
        num_steps=run.num_steps,
        first_step=next_step(run),
        settings={path: setting_of(run.config, path) for path in paths},
        items=[_change(row) for row in list_changes(run)],
    )


class RunExtendIn(Input):
    num_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = Field(
        description="The last step.", examples=[400]
    )


@router.post(
    "/{run_id}/extend", response=RunChangesOut, auth=WRITE, summary="Extend a run"
)
def extend(request: HttpRequest, run_id: Id, payload: RunExtendIn) -> RunChangesOut:
    """One that has ended well is queued again, from its last checkpoint."""
    access = access_of(request)
    run = get_run(access.team, run_id)
    with or_conflict("body.num_steps"):
        extend_run(run=run, user=access.user, num_steps=payload.num_steps)
    return _read(access.team, run_id)


class RunSettingsIn(Input):
    settings: dict[str, Annotated[int, Field(ge=0, le=10**8)]] = Field(
        min_length=1, examples=[{"checkpoint.every_steps": 20}]
    )
    was: dict[str, int] = Field(
        default={},
        description="What they were when you read them: 409 with both values where "
        "somebody changed the same one since.",
        examples=[{}],
    )


@router.post(
    "/{run_id}/changes", response=RunChangesOut, auth=WRITE, summary="Change a run"
)
def change_settings(
    request: HttpRequest, run_id: Id, payload: RunSettingsIn
) -> RunChangesOut:
    """Intervals and retention; a trainer at work hears of it behind its step."""
    access = access_of(request)
    run = get_run(access.team, run_id)
    known = {field.path for field in interval_fields()}
    if unknown := [path for path in payload.settings if path not in known]:
        raise refuse_field(
            f"body.settings.{unknown[0][:80]}",
            f"This cannot change after a launch. {', '.join(sorted(known))} can.",
        )
    with or_conflict("body.settings"):
        edit = Edit(given=payload.settings, was=payload.was)
        change_run(run=run, user=access.user, edit=edit)
    return _read(access.team, run_id)
