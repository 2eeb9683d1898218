"""Models of the team that new runs start from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import or_conflict
from dashboard.api.schemas import Done, Id, Person, fill
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import PublishedModel
from dashboard.training.publishing import unpublish

router = Router(tags=["Models"], auth=READ)


class PublishedModelOut(Schema):
    id: int = Field(examples=[2])
    name: str = Field(examples=["sums-1"])
    path: str = Field(
        description="What a launch takes as its model.",
        examples=["/data/models/1/2/model"],
    )
    run_id: int | None = Field(description="null: the run is gone.", examples=[7])
    run_name: str = Field(examples=["calm-otter-7"])
    step: int = Field(examples=[50])
    sha256: str = Field(description="Of the checkpoint's manifest.")
    num_bytes: int = Field(examples=[540_000_000])
    published_by: Person | None
    published_at: datetime
    needed_by: list[int] = Field(
        description="Runs that have not ended and start from it.", examples=[[9]]
    )


def model_out(
    model: PublishedModel, needed_by: list[int] | None = None
) -> PublishedModelOut:
    return fill(
        PublishedModelOut,
        model,
        path=folder_of(model),
        published_by=Person.of(model.published_by),
        needed_by=needed_by or [],
    )


@router.get("", response=Page[PublishedModelOut], summary="List published models")
def models(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """The newest first."""
    team = access_of(request).team
    found = team.published_models.select_related("published_by")
    needs = needs_of(team)

    def read(model: PublishedModel) -> PublishedModelOut:
        return model_out(model, [run.pk for run in needs.get(folder_of(model), [])])

    return page_by(found, read, cursor=cursor, limit=limit)


@router.delete("/{model_id}", response=Done, auth=WRITE, summary="Unpublish a model")
def unpublish_model(request: HttpRequest, model_id: Id) -> Done:
    """With its files; 409 while a run that has not ended needs it."""
    access = access_of(request)
    with or_conflict():
        unpublish(model=_find(access.team, model_id), user=access.user)
    return Done(done=True)


def _find(team: Team, model_id: int) -> PublishedModel:
    found = team.published_models.select_related("published_by")
    model = found.filter(pk=model_id).first()
    if model is None:
        raise Http404(f"{team} has no model {model_id}.")
    return model
