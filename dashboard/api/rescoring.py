"""Rescorings: a run's stored completions scored again, with this or another recipe."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http.response import HttpResponseBase
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.analysis.rescoring import services
from dashboard.analysis.rescoring.figures import WRITERS
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.services import (
    get_rescoring,
    list_failures,
    list_rescorings,
    select_steps,
    start_rescoring,
)
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import Problem, or_conflict, refuse_field
from dashboard.api.recipes import find_recipe_version, read_spec
from dashboard.api.schemas import (
    FILE,
    LARGEST_STEP,
    Cursor,
    Done,
    Id,
    IdIn,
    Input,
    JobOut,
    Limit,
    Page,
    StepIn,
    fill,
    job_fields,
    page_by,
)
from dashboard.datasets.row_exports import TYPES, joined
from dashboard.jobs.queue import request_stop
from dashboard.project.errors import code_of
from dashboard.runs.queries import get_run
from dashboard.web.downloads import attach
from trainer.rewards.spec import Recipe

router = Router(tags=["Rescoring"], auth=READ)


class RescoringOut(JobOut):
    id: int = Field(examples=[3])
    run_id: int = Field(examples=[7])
    recipe_version_id: int | None = Field(
        description="null: the reward of each step, or an unsaved reward."
    )
    first_step: int
    last_step: int
    every: int
    num_completions: int = Field(description="Completions to score.")
    result: dict[str, Any] = Field(description="Summary of a finished rescoring.")
    created_at: datetime
    finished_at: datetime | None


def rescoring_out(row: Rescoring, *, tells_why: bool = False) -> RescoringOut:
    return fill(RescoringOut, row, **job_fields(row, tells_why=tells_why))


@router.get("", response=Page[RescoringOut], summary="List rescorings")
def rescorings(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first."""
    rescorings_ = list_rescorings(request.auth.team, None)
    return page_by(rescorings_, rescoring_out, cursor=cursor, limit=limit)


class RescoringIn(Input):
    run_id: IdIn = Field(examples=[7])
    recipe_version_id: IdIn | None = Field(
        default=None, description="null: the reward of each step, or `spec`."
    )
    spec: dict[str, Any] | None = Field(
        default=None, description="An unsaved reward, in place of a version."
    )
    first_step: StepIn | None = None
    last_step: StepIn | None = None
    every: Annotated[int, Field(ge=1, le=LARGEST_STEP)] = Field(
        default=1,
        description="Step interval: 1 scores every stored step, 10 every tenth.",
    )
    may_ask: bool = Field(
        default=False, description="Allow judge requests, which cost money."
    )


@router.post("", response={201: RescoringOut}, auth=WRITE, summary="Start a rescoring")
def rescore(request: ApiRequest, payload: RescoringIn) -> Status[RescoringOut]:
    """Queue a rescoring of the run's stored completions. The run does not change."""
    run = get_run(request.auth.team, payload.run_id)
    version = recipe = None  # None: each step's own
    if payload.recipe_version_id is not None:
        version = find_recipe_version(request.auth.team, payload.recipe_version_id)
        recipe = Recipe.model_validate(version.spec)
    if payload.spec is not None:
        if version is not None:
            message = "Send a reward version or a spec, not both."
            raise refuse_field("body.spec", message, code="rescoring.recipe_and_spec")
        recipe = read_spec(payload.spec)
    first, last = payload.first_step, payload.last_step
    if first is not None and last is not None and first > last:
        raise refuse_field(
            "body.last_step",
            f"The last step is before the first, {first}. Swap them.",
            code="rescoring.step_order",
        )
    try:
        begun = start_rescoring(
            team=request.auth.team,
            user=request.auth.user,
            run=run,
            selection=select_steps(run, first, last, payload.every),
            recipe=recipe,
            recipe_version=version,
            allows_judges=payload.may_ask,
        )
    except ValueError as error:
        raise Problem(422, str(error), code=code_of(error)) from error
    return Status(201, rescoring_out(begun))


class RescoringFailureOut(Schema):
    step: int = Field(examples=[40])
    prompt_index: int = Field(examples=[17])
    position: int = Field(examples=[0])
    rule: str = Field(examples=["answer"])
    error: str = Field(examples=["no number in the answer"])


class RescoringDetail(RescoringOut):
    spec: dict[str, Any] | None = Field(
        description="The reward; null: the reward of each step."
    )
    failures: list[RescoringFailureOut] = Field(description="The first 20 failures.")


@router.get("/{rescoring_id}", response=RescoringDetail, summary="Get a rescoring")
def rescoring(request: ApiRequest, rescoring_id: Id) -> RescoringDetail:
    rescoring_ = get_rescoring(request.auth.team, rescoring_id)
    return RescoringDetail(
        **rescoring_out(rescoring_, tells_why=True).model_dump(),
        spec=rescoring_.spec,
        failures=[
            fill(RescoringFailureOut, failure, prompt_index=failure.prompt)
            for failure in list_failures(rescoring_)
        ],
    )


@router.post(
    "/{rescoring_id}/stop", response=Done, auth=WRITE, summary="Stop a rescoring"
)
def stop_rescoring(request: ApiRequest, rescoring_id: Id) -> Done:
    rescoring_ = get_rescoring(request.auth.team, rescoring_id)
    is_done = request_stop(rescoring_, request.auth.user, "rescoring.stop_requested")
    return Done.or_state(is_done, rescoring_, "Nothing to stop: the rescoring is")


@router.delete(
    "/{rescoring_id}", response=Done, auth=WRITE, summary="Delete a rescoring"
)
def delete_rescoring(request: ApiRequest, rescoring_id: Id) -> Done:
    """Permanent. 409 while the rescoring is open."""
    rescoring_ = get_rescoring(request.auth.team, rescoring_id)
    with or_conflict():
        services.delete_rescoring(rescoring=rescoring_, user=request.auth.user)
    return Done(done=True)


@router.get(
    "/{rescoring_id}/completions.{file_format}",
    response=FILE,
    summary="Export a rescoring",
)
def rescoring_file(
    request: ApiRequest, rescoring_id: Id, file_format: Literal["jsonl", "csv"]
) -> HttpResponseBase:
    """Return one line per completion: old and new reward, rank, advantage and rule
    scores.
    """
    rescoring_ = get_rescoring(request.auth.team, rescoring_id)
    return attach(
        joined(WRITERS[file_format](rescoring_)),
        filename=f"{rescoring_.run.name}-rescoring-{rescoring_.pk}.{file_format}",
        content_type=f"{TYPES[file_format]}; charset=utf-8",
    )
