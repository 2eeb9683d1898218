"""What may change of a run after its launch: its steps and its intervals."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.launches import LaunchIn, checked_launch, read_launch
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
from dashboard.runs.launch.estimates import Memory
from dashboard.runs.launch.summary import summarize
from dashboard.runs.launch.toml import write_form
from dashboard.runs.models import SettingChange
from dashboard.runs.queries import get_run, list_changes

changes_router = Router(tags=["Runs"], auth=READ)


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


@changes_router.get(
    "/{run_id}/changes", response=RunChangesOut, summary="List a run's changes"
)
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


@changes_router.post(
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


@changes_router.post(
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


# What a launch would amount to, before it is one.

router = Router(tags=["Launch"], auth=WRITE)


class LaunchAmountOut(Schema):
    title: str = Field(examples=["Completions per step"])
    value: str = Field(examples=["256"])
    how: str = Field(examples=["32 prompts × 8"])


class MemoryFitOut(Schema):
    device: str = Field(examples=["NVIDIA H100 80GB HBM3"])
    percent: float = Field(description="Of its memory.", examples=[41.5])


class MemoryOut(Schema):
    """The most that the run holds at once."""

    num_bytes: int = Field(examples=[2_400_000_000])
    peak: str = Field(description="When that is.", examples=["while updating"])
    parts: dict[str, int] = Field(
        description="Bytes.", examples=[{"Weights": 540_000_000}]
    )
    fits: list[MemoryFitOut] = Field(description="Devices of workers that are known.")
    problem: str = Field(description="Why nothing is known.")


def _memory(memory: Memory) -> MemoryOut:
    return MemoryOut(
        num_bytes=memory.total,
        peak=memory.peak,
        parts={part.title: part.num_bytes for part in memory.parts},
        fits=[
            MemoryFitOut(device=fit.device.name, percent=fit.percent)
            for fit in memory.fits
        ],
        problem=memory.problem,
    )


class LaunchCheckOut(Schema):
    name: str = Field(examples=["calm-otter-7"])
    amounts: list[LaunchAmountOut]
    memory: MemoryOut
    warnings: list[str] = Field(description="A launch takes confirm: true for these.")
    hints: list[str]
    fitted: dict[str, str] = Field(
        description="Settings made to fit the dataset's rows.",
        examples=[{"data.num_eval_rows": "20"}],
    )
    fitted_because: list[str]
    config: dict[str, Any] = Field(description="As the engine would take it.")
    toml: str = Field(
        description="The same as TOML.", examples=["[optim]\nnum_steps = 200\n"]
    )


@router.post("/launches/check", response=LaunchCheckOut, summary="Check a launch")
def check_launch(request: HttpRequest, payload: LaunchIn) -> LaunchCheckOut:
    """Takes what a launch takes, refuses what it refuses, and launches nothing."""
    form = read_launch(access_of(request).team, payload)
    asked = checked_launch(form)
    summary = summarize(form)
    return LaunchCheckOut(
        name=asked.name,
        amounts=[fill(LaunchAmountOut, one) for one in summary.amounts],
        memory=_memory(summary.memory),
        warnings=list(summary.warnings),
        hints=summary.hints,
        fitted=form.fit.texts,
        fitted_because=list(form.fit.sentences),
        config=asked.config.model_dump(mode="json"),
        toml=write_form(form),
    )
