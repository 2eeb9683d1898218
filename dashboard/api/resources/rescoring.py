"""One rescoring: what came of it, and its end."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router, Schema
from pydantic import Field

from dashboard.analysis.rescoring import services
from dashboard.analysis.rescoring.figures import TYPES, WRITERS
from dashboard.analysis.rescoring.services import get_rescoring, list_failures
from dashboard.api.attachments import FILE, attach
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.problems import or_conflict
from dashboard.api.resources.rescorings import RescoringOut, rescoring_out
from dashboard.api.schemas import Done, Id, fill
from dashboard.datasets.row_exports import joined

router = Router(tags=["Rescoring"], auth=READ)


class RescoringFailureOut(Schema):
    step: int = Field(examples=[40])
    prompt_index: int = Field(examples=[17])
    position: int = Field(examples=[0])
    rule: str = Field(examples=["answer"])
    error: str = Field(examples=["no number in the answer"])


class RescoringDetail(RescoringOut):
    spec: dict[str, Any] | None = Field(
        description="The recipe; null: each step's own."
    )
    failures: list[RescoringFailureOut] = Field(description="The first 20 of them.")


@router.get("/{rescoring_id}", response=RescoringDetail, summary="Look at a rescoring")
def rescoring(request: HttpRequest, rescoring_id: Id) -> RescoringDetail:
    found = get_rescoring(access_of(request).team, rescoring_id)
    return RescoringDetail(
        **rescoring_out(found, tells_why=True).model_dump(),
        spec=found.spec,
        failures=[
            fill(RescoringFailureOut, each, prompt_index=each.prompt)
            for each in list_failures(found)
        ],
    )


@router.post(
    "/{rescoring_id}/stop", response=Done, auth=WRITE, summary="Stop a rescoring"
)
def stop_rescoring(request: HttpRequest, rescoring_id: Id) -> Done:
    access = access_of(request)
    found = get_rescoring(access.team, rescoring_id)
    if services.request_stop(rescoring=found, user=access.user):
        return Done(done=True)
    found.refresh_from_db()
    return Done(done=False, detail=f"Nothing to stop: it is {found.state}.")


@router.delete(
    "/{rescoring_id}", response=Done, auth=WRITE, summary="Delete a rescoring"
)
def delete_rescoring(request: HttpRequest, rescoring_id: Id) -> Done:
    """For good; 409 while it goes on."""
    access = access_of(request)
    found = get_rescoring(access.team, rescoring_id)
    with or_conflict():
        services.delete_rescoring(rescoring=found, user=access.user)
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
