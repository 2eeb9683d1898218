"""Datasets that are put away, restored, or deleted for good."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import WRITE, access_of
from dashboard.api.filters import refuse_errors
from dashboard.api.problems import Problem, or_conflict, or_refuse
from dashboard.api.resources.datasets.schemas import DatasetOut, Name
from dashboard.api.schemas import Done, Id, Input
from dashboard.datasets import trash
from dashboard.datasets.forms.name import RestoreForm
from dashboard.datasets.models import Dataset
from dashboard.datasets.queries import get_any_dataset

router = Router(tags=["Datasets"], auth=WRITE)


@router.post(
    "/datasets/{dataset_id}/trash", response=Done, summary="Move a dataset to the trash"
)
def trash_dataset(request: HttpRequest, dataset_id: Id) -> Done:
    """After 30 days, or as the team keeps its trash, it is gone, unless a run used it.

    Runs keep what they were trained on.
    """
    access = access_of(request)
    if trash.trash_dataset(get_any_dataset(access.team, dataset_id), access.user):
        return Done(done=True)
    return Done(done=False, detail="It is in the trash already.")


class RestoreIn(Input):
    name: Name | None = Field(
        default=None, description="Where another has its name by now."
    )


@router.post(
    "/datasets/{dataset_id}/restore",
    response=DatasetOut,
    summary="Restore a dataset from the trash",
)
def restore_dataset(
    request: HttpRequest, dataset_id: Id, payload: RestoreIn
) -> DatasetOut:
    access = access_of(request)
    found = _trashed(access.team, dataset_id)
    form = RestoreForm({"name": payload.name or found.name})
    refuse_errors(form, place="body")
    with or_refuse("body.name"):
        trash.restore_dataset(found, name=form.cleaned_data["name"], user=access.user)
    return DatasetOut.of(get_any_dataset(access.team, dataset_id))


@router.delete(
    "/trashed-datasets/{dataset_id}", response=Done, summary="Delete a dataset for good"
)
def delete_dataset(request: HttpRequest, dataset_id: Id) -> Done:
    """One of the trash that no run or probe used."""
    access = access_of(request)
    found = _trashed(access.team, dataset_id)
    with or_conflict():
        trash.delete_dataset(found, access.user)
    return Done(done=True)


def _trashed(team: Team, dataset_id: int) -> Dataset:
    found = get_any_dataset(team, dataset_id)
    if found.trashed_at is None:
        raise Problem(
            409, f"{found} is not in the trash. Move it there first, or leave it."
        )
    found.team = team  # which is at hand
    return found
