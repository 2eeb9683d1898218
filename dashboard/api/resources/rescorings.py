"""Stored completions scored anew."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.attachments import FILE, attach
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.schemas import LARGEST_ID, LARGEST_STEP, Done, Id, Input, StepIn
from dashboard.datasets.rows.exports import joined
from dashboard.rescoring.exports import TYPES, WRITERS
from dashboard.rescoring.models import Rescoring
from dashboard.rescoring.queries import get_rescoring, list_rescorings
from dashboard.rescoring.selection import select_steps
from dashboard.rescoring.services import (
    delete_rescoring,
    request_stop,
    start_rescoring,
)
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.queries import get_run
from trainer.rewards.spec import Recipe

router = Router(tags=["Rescoring"], auth=READ)


class RescoringOut(Schema):
    id: int = Field(examples=[3])
    run_id: int = Field(examples=[7])
    recipe_version_id: int | None = Field(
        description="null: each step's own recipe, or one that is not saved."
    )
    state: str = Field(examples=["finished"])
    first_step: int
    last_step: int
    every: int
    num_completions: int = Field(description="That are scored.")
    num_done: int
    result: dict[str, Any] = Field(description="Of a finished one, its summary.")
    error: str
    created_at: datetime
    finished_at: datetime | None


def _rescoring(row: Rescoring) -> RescoringOut:
    names = ("run_id", "recipe_version_id", "state", "first_step", "last_step", "every")
    more = ("num_completions", "num_done", "result", "error", "created_at")
    fields = {name: getattr(row, name) for name in (*names, *more, "finished_at")}
    return RescoringOut(id=row.pk, **fields)


@router.get("", response=Page[RescoringOut], summary="List rescorings")
def rescorings(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """The newest first."""
    found = list_rescorings(access_of(request).team, None)
    return page_by(found, _rescoring, cursor=cursor, limit=limit, total=found.count())


@router.get("/{rescoring_id}", response=RescoringOut, summary="Look at a rescoring")
def rescoring(request: HttpRequest, rescoring_id: Id) -> RescoringOut:
    return _rescoring(get_rescoring(access_of(request).team, rescoring_id))


class RescoringIn(Input):
    run_id: Annotated[int, Field(ge=1, le=LARGEST_ID)] = Field(examples=[7])
    recipe_version_id: Annotated[int, Field(ge=1, le=LARGEST_ID)] | None = Field(
        default=None, description="null: each step's own recipe."
    )
    first_step: StepIn | None = None
    last_step: StepIn | None = None
    every: Annotated[int, Field(ge=1, le=LARGEST_STEP)] = Field(
        default=1, description="One of so many steps."
    )
    may_ask: bool = Field(
        default=False, description="Judges may be asked, which costs money."
    )


@router.post("", response={201: RescoringOut}, auth=WRITE, summary="Start a rescoring")
def rescore(request: HttpRequest, payload: RescoringIn) -> Status[RescoringOut]:
    """A worker scores the run's stored completions; what is stored stays."""
    access = access_of(request)
    run = get_run(access.team, payload.run_id)
    version = _version(access.team, payload.recipe_version_id)
    first, last = payload.first_step, payload.last_step
    if first is not None and last is not None and first > last:
        raise refuse_field("body.last_step", f"It is before {first}. Swap the two.")
    try:
        begun = start_rescoring(
            team=access.team,
            user=access.user,
            run=run,
            selection=select_steps(run, first, last, payload.every),
            recipe=Recipe.model_validate(version.spec) if version else None,
            recipe_version=version,
            may_ask=payload.may_ask,
        )
    except ValueError as error:
        raise Problem(422, str(error)) from error
    return Status(201, _rescoring(begun))


def _version(team: Any, version_id: int | None) -> RecipeVersion | None:
    if version_id is None:
        return None
    found = RecipeVersion.objects.select_related("recipe")
    version = found.filter(recipe__team=team, pk=version_id).first()
    if version is None:
        raise Http404(f"{team} has no recipe version {version_id}.")
    return version


@router.post(
    "/{rescoring_id}/stop", response=Done, auth=WRITE, summary="Stop a rescoring"
)
def stop_rescoring(request: HttpRequest, rescoring_id: Id) -> Done:
    access = access_of(request)
    found = get_rescoring(access.team, rescoring_id)
    if request_stop(rescoring=found, user=access.user):
        return Done(done=True)
    found.refresh_from_db(fields=["state"])
    return Done(done=False, detail=f"Nothing to stop: it is {found.state}.")


@router.delete(
    "/{rescoring_id}", response=Done, auth=WRITE, summary="Delete a rescoring"
)
def drop_rescoring(request: HttpRequest, rescoring_id: Id) -> Done:
    """For good; 409 while it goes on."""
    access = access_of(request)
    found = get_rescoring(access.team, rescoring_id)
    try:
        delete_rescoring(rescoring=found, user=access.user)
    except ValueError as error:
        raise Problem(409, str(error)) from error
    return Done(done=True)


@router.get(
    "/{rescoring_id}/completions.{file_format}",
    response=FILE,
    summary="Take a rescoring as a file",
)
def rescoring_file(
    request: HttpRequest, rescoring_id: Id, file_format: Literal["jsonl", "csv"]
) -> HttpResponseBase:
    """A line for each completion: reward, rank, advantage and rules, old and new."""
    found = get_rescoring(access_of(request).team, rescoring_id)
    return attach(
        joined(WRITERS[file_format](found)),
        filename=f"{found.run.name}-rescoring-{found.pk}.{file_format}",
        content_type=f"{TYPES[file_format]}; charset=utf-8",
    )
