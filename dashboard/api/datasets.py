"""Datasets and their versions: read, moved to the trash, deleted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http.response import HttpResponseBase
from ninja import Path, Query, Router
from pydantic import Field

from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.dataset_schemas import (
    DatasetOut,
    DatasetVersionOut,
    Name,
    RowFilters,
    RowOut,
    find_version,
    read_view,
)
from dashboard.api.problems import Problem, or_404, or_conflict, or_refuse
from dashboard.api.schemas import (
    Cursor,
    Done,
    Id,
    Input,
    Limit,
    Page,
    page_by,
    read_cursor,
    refuse_errors,
    write_cursor,
)
from dashboard.datasets import trash
from dashboard.datasets.import_forms import RestoreForm
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import (
    get_any_dataset,
    get_dataset,
    list_trashed,
    list_versions,
)
from dashboard.datasets.row_exports import RowsMissing, check_rows, send_rows
from dashboard.datasets.row_pages import read_matching

router = Router(tags=["Datasets"], auth=READ)
Format = Annotated[Literal["jsonl", "csv"], Path(examples=["jsonl"])]


@router.get("/datasets", response=Page[DatasetOut], summary="List datasets")
def datasets(
    request: ApiRequest,
    cursor: Cursor,
    limit: Limit,
    is_trashed: Annotated[bool, Query(False, description="List the trash instead.")],
) -> Page[Any]:
    """Newest first, without the trash."""
    rows = (
        list_trashed(request.auth.team)
        if is_trashed
        else request.auth.team.datasets.filter(trashed_at=None)
    )
    return page_by(
        rows.select_related("created_by"), DatasetOut.of, cursor=cursor, limit=limit
    )


@router.get("/datasets/{dataset_id}", response=DatasetOut, summary="Get a dataset")
def dataset(request: ApiRequest, dataset_id: Id) -> DatasetOut:
    """Return a dataset, also from the trash."""
    return DatasetOut.of(get_any_dataset(request.auth.team, dataset_id))


@router.get(
    "/datasets/{dataset_id}/versions",
    response=Page[DatasetVersionOut],
    summary="List a dataset's versions",
)
def dataset_versions(
    request: ApiRequest, dataset_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """Newest first. A version never changes."""
    own = get_dataset(request.auth.team, dataset_id)
    versions = list_versions(request.auth.team).filter(dataset=own)
    return page_by(versions, DatasetVersionOut.of, cursor=cursor, limit=limit)


@router.get(
    "/dataset-versions/{version_id}",
    response=DatasetVersionOut,
    summary="Get a dataset version",
)
def dataset_version(request: ApiRequest, version_id: Id) -> DatasetVersionOut:
    return DatasetVersionOut.of(find_version(request.auth.team, version_id))


class RowsOut(Page[RowOut]):
    total: int = Field(description="Rows of the version.", examples=[7_473])
    num_matching: int = Field(
        description="Rows that match the filters, as far as counted."
    )
    is_counted: bool = Field(
        description="False if there may be more than `num_matching`: a request "
        "searches for a limited time. Follow the cursor even if a page is empty."
    )


@router.get(
    "/dataset-versions/{version_id}/rows",
    response=RowsOut,
    summary="Read or search a version's rows",
)
def dataset_rows(
    request: ApiRequest,
    version_id: Id,
    cursor: Cursor,
    limit: Limit,
    filters: Query[RowFilters],
) -> RowsOut:
    """Return rows in file order unless `sort` is set.

    409 while Cohort sorts a large version.
    """
    version = find_version(request.auth.team, version_id)
    view = read_view(version, filters)
    start = read_cursor(cursor) if cursor else 0
    matching = read_matching(version, view, min(start, version.num_rows), wanted=limit)
    if matching is None:
        raise Problem(
            409,
            f"Cohort is sorting {version} by {view.order_key}. Retry in 2 s.",
            code="datasets.sorting",
            headers={"Retry-After": "2"},
        )
    return RowsOut(
        items=[RowOut.of(row) for row in matching.rows],
        next_cursor=None if matching.is_end else write_cursor(matching.last),
        total=version.num_rows,
        num_matching=matching.count.num_matching,
        is_counted=matching.count.is_exact,
    )


@router.get(
    "/dataset-versions/{version_id}/files/{rows_format}",
    response={200: bytes},
    summary="Download a version",
)
def dataset_file(
    request: ApiRequest, version_id: Id, rows_format: Format
) -> HttpResponseBase:
    """Return all rows with the column names of the source file. Also from the trash."""
    versions = DatasetVersion.objects.select_related("dataset")
    row = versions.filter(dataset__team=request.auth.team, pk=version_id).first()
    version = or_404(row, f"{request.auth.team} has no dataset version {version_id}.")
    try:
        check_rows(version)
    except RowsMissing as error:
        raise Problem(409, str(error), code=error.code) from error
    return send_rows(version, rows_format)


class DatasetChange(Input):
    is_trashed: bool = Field(examples=[True])
    name: Name | None = Field(
        default=None, description="New name of a restored dataset if its name is taken."
    )


@router.patch(
    "/datasets/{dataset_id}",
    response=DatasetOut,
    auth=WRITE,
    summary="Move a dataset to the trash, or restore it",
)
def trash_dataset(
    request: ApiRequest, dataset_id: Id, payload: DatasetChange
) -> DatasetOut:
    """Cohort deletes it after 30 days in the trash, or the team's own period, unless a
    run used it."""
    dataset_ = get_any_dataset(request.auth.team, dataset_id)
    if payload.is_trashed:
        trash.trash_dataset(dataset_, request.auth.user)
    elif dataset_.trashed_at is not None:
        dataset_.team = request.auth.team  # avoids a query
        form = RestoreForm({"name": payload.name or dataset_.name})
        refuse_errors(form, place="body")
        name = form.cleaned_data["name"]
        with or_refuse("body.name"):
            trash.restore_dataset(dataset_, name=name, user=request.auth.user)
    return DatasetOut.of(get_any_dataset(request.auth.team, dataset_id))


@router.delete(
    "/datasets/{dataset_id}",
    response=Done,
    auth=WRITE,
    summary="Delete a dataset permanently",
)
def delete_dataset(request: ApiRequest, dataset_id: Id) -> Done:
    """Delete a dataset in the trash that no run or probe has used."""
    dataset_ = get_any_dataset(request.auth.team, dataset_id)
    if dataset_.trashed_at is None:
        message = f"{dataset_} is not in the trash. Move it there first."
        raise Problem(409, message, code="datasets.not_in_trash")
    dataset_.team = request.auth.team  # avoids a query
    with or_conflict():
        trash.delete_dataset(dataset_, request.auth.user)
    return Done(done=True)
