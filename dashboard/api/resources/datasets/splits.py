"""A version's rows dealt to a half to train on and one that is held out."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import refuse_field
from dashboard.api.resources.datasets.schemas import Name, find_version
from dashboard.api.schemas import LARGEST_STEP, Id, Input
from dashboard.datasets.forms.split import SplitForm
from dashboard.datasets.models import VersionSplit
from dashboard.datasets.splits import list_splits, split_version

router = Router(tags=["Datasets"], auth=READ)


class SplitOut(Schema):
    id: int = Field(examples=[2])
    how: str = Field(description="In words.", examples=["10 % by seed 0"])
    is_done: bool
    problem: str
    num_looked: int = Field(description="Rows dealt so far.")
    num_wanted: int
    train_name: str = Field(examples=["sums train"])
    eval_name: str = Field(examples=["sums eval"])
    train_version_id: int | None = Field(description="Once it is done.", examples=[13])
    eval_version_id: int | None = Field(examples=[14])

    @classmethod
    def of(cls, split: VersionSplit) -> SplitOut:
        return cls(
            id=split.pk,
            how=split.how,
            is_done=split.is_done,
            problem=split.problem,
            num_looked=split.num_looked,
            num_wanted=split.num_wanted,
            train_name=split.train_name,
            eval_name=split.eval_name,
            train_version_id=split.train_id,
            eval_version_id=split.eval_id,
        )


class SplitsOut(Schema):
    items: list[SplitOut]


@router.get(
    "/dataset-versions/{version_id}/splits",
    response=SplitsOut,
    summary="List a version's splits",
)
def dataset_splits(request: HttpRequest, version_id: Id) -> SplitsOut:
    """The newest first."""
    version = find_version(access_of(request).team, version_id)
    return SplitsOut(items=[SplitOut.of(split) for split in list_splits(version)])


class SplitIn(Input):
    by: Literal["share", "column"] = Field(default="share", examples=["share"])
    share: float | None = Field(
        default=10.0, description="Held out, in %.", allow_inf_nan=False, examples=[10]
    )
    seed: Annotated[int, Field(ge=0, le=LARGEST_STEP)] | None = 0
    column: str = Field(default="", max_length=1_000, description="Of by column.")
    value: str = Field(
        default="",
        max_length=500,
        description="Rows with it in the column are held out.",
    )
    train_name: Name = Field(examples=["sums train"])
    eval_name: Name = Field(examples=["sums eval"])


@router.post(
    "/dataset-versions/{version_id}/splits",
    response={201: SplitOut, 202: SplitOut},
    auth=WRITE,
    summary="Split a version",
)
def split_dataset(
    request: HttpRequest, version_id: Id, payload: SplitIn
) -> Status[SplitOut]:
    """Two new datasets, by a share of the prompts or a column's value. 202: a worker
    does it; list the splits until it is done."""
    access = access_of(request)
    version = find_version(access.team, version_id)
    form = SplitForm(version, payload.model_dump(exclude_none=True))
    refuse_errors(form, place="body")
    split = split_version(
        version,
        rule=form.rule,
        train_name=form.cleaned_data["train_name"],
        eval_name=form.cleaned_data["eval_name"],
        user=access.user,
    )
    if split.problem:
        raise refuse_field("body", split.problem)
    return Status(201 if split.is_done else 202, SplitOut.of(split))
