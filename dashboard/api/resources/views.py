"""Addresses of the run list that people keep under a name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from django.urls import reverse
from ninja import Path, Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, Access, access_of
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.schemas import Done, Input, Person
from dashboard.runs.models import SavedView
from dashboard.runs.table.saved_views import (
    MAX_QUERY,
    change_view,
    delete_view,
    get_view,
    save_view,
    set_default,
    visible_views,
)

router = Router(tags=["Views"], auth=READ)
Code = Annotated[str, Path(max_length=16, examples=["k3x9q2"])]
Name = Annotated[str, Field(max_length=400)]
Address = Annotated[str, Field(max_length=2 * MAX_QUERY)]


class ViewOut(Schema):
    code: str = Field(examples=["k3x9q2"])
    name: str = Field(examples=["Good baselines"])
    query: str = Field(
        description="Of the run list's address; `q` and `sort` are what `/runs` takes.",
        examples=["q=tag+%3D+baseline&sort=-last.reward%2Fmean"],
    )
    address: str = Field(examples=["https://cohort.example.org/lab/runs/views/k3x9q2/"])
    owner: Person | None
    is_shared: bool = Field(description="With the team.")
    is_default: bool = Field(description="The token's person's list begins with it.")
    created_at: datetime


class ViewsOut(Schema):
    items: list[ViewOut]


def _view(request: HttpRequest, view: SavedView) -> ViewOut:
    path = reverse("runs_view", args=[access_of(request).team.slug, view.code])
    return ViewOut(
        code=view.code,
        name=view.name,
        query=view.query,
        address=request.build_absolute_uri(path),
        owner=Person.of(view.owner),
        is_shared=view.is_shared,
        is_default=bool(getattr(view, "is_default", False)),
        created_at=view.created_at,
    )


@router.get("", response=ViewsOut, summary="List views of the run list")
def views(request: HttpRequest) -> ViewsOut:
    """One's own and the team's, by name."""
    access = access_of(request)
    found = visible_views(access.team, access.user)
    return ViewsOut(items=[_view(request, view) for view in found])


@router.get("/{code}", response=ViewOut, summary="Look at a view")
def view(request: HttpRequest, code: Code) -> ViewOut:
    return _found(request, access_of(request), code)


def _found(request: HttpRequest, access: Access, code: str) -> ViewOut:
    return _view(request, get_view(access.team, access.user, code))


class ViewIn(Input):
    name: Name = Field(examples=["Good baselines"])
    query: Address = Field(
        default="", examples=["q=tag+%3D+baseline&sort=-last.reward%2Fmean"]
    )
    is_shared: bool = False


@router.post("", response={201: ViewOut}, auth=WRITE, summary="Save a view")
def create_view(request: HttpRequest, payload: ViewIn) -> Status[ViewOut]:
    """For oneself, or shared with the team."""
    access = access_of(request)
    try:
        made = save_view(team=access.team, user=access.user, **payload.model_dump())
    except ValueError as error:
        raise _refused(error) from error
    return Status(201, _found(request, access, made.code))


class ViewChange(Input):
    """What is left out stays."""

    name: Name | None = Field(default=None, examples=["Best baselines"])
    query: Address | None = None
    is_shared: bool | None = None


@router.patch("/{code}", response=ViewOut, auth=WRITE, summary="Change a view")
def update_view(request: HttpRequest, code: Code, payload: ViewChange) -> ViewOut:
    """One's own, or the team's."""
    access = access_of(request)
    found = get_view(access.team, access.user, code)
    try:
        change_view(found, user=access.user, **payload.model_dump())
    except ValueError as error:
        raise _refused(error) from error
    return _found(request, access, code)


class DefaultIn(Input):
    is_default: bool = Field(examples=[True])


@router.post(
    "/{code}/default", response=ViewOut, auth=WRITE, summary="Begin with a view"
)
def set_default_view(request: HttpRequest, code: Code, payload: DefaultIn) -> ViewOut:
    """The run list of the token's person begins with it, or no longer."""
    access = access_of(request)
    found = get_view(access.team, access.user, code)
    set_default(found, access.user, is_default=payload.is_default)
    return _found(request, access, code)


@router.delete("/{code}", response=Done, auth=WRITE, summary="Delete a view")
def remove_view(request: HttpRequest, code: Code) -> Done:
    """The runs stay as they are."""
    access = access_of(request)
    delete_view(get_view(access.team, access.user, code), user=access.user)
    return Done(done=True)


def _refused(error: ValueError) -> Problem:
    is_query = str(error).startswith("The address")
    return refuse_field("body.query" if is_query else "body.name", str(error))
