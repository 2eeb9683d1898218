"""Datasets, their versions and rows: read, moved to the trash, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http.response import HttpResponseBase
from ninja import Path, Query, Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import Problem, or_conflict, or_refuse, refuse_field
from dashboard.api.schemas import (
    LARGEST_STEP,
    Cursor,
    Done,
    Id,
    Input,
    JobOut,
    Limit,
    Page,
    Person,
    fill,
    job_fields,
    page_by,
    query_of,
    read_cursor,
    refuse_errors,
    write_cursor,
)
from dashboard.datasets import trash
from dashboard.datasets.import_forms import RestoreForm
from dashboard.datasets.models import Dataset, DatasetRow, DatasetVersion, ImportJob
from dashboard.datasets.queries import (
    get_any_dataset,
    get_dataset,
    list_trashed,
    list_versions,
)
from dashboard.datasets.row_exports import RowsMissing, check_rows, send_rows
from dashboard.datasets.row_filters import RowFilterForm
from dashboard.datasets.row_pages import read_matching
from dashboard.project.errors import or_404

Name = Annotated[str, Field(max_length=400)]
Text = Annotated[str, Query("", max_length=500)]
Length = Annotated[int | None, Query(None, ge=0, le=LARGEST_STEP)]


class DatasetOut(Schema):
    id: int = Field(examples=[4])
    name: str = Field(examples=["sums"])
    description: str
    created_by: Person | None
    created_at: datetime
    trashed_at: datetime | None

    @classmethod
    def of(cls, row: Dataset) -> DatasetOut:
        return fill(cls, row, created_by=Person.of(row.created_by))


class DatasetVersionOut(Schema):
    id: int = Field(examples=[12])
    dataset_id: int = Field(examples=[4])
    dataset: str = Field(examples=["sums"])
    number: int = Field(examples=[2])
    num_rows: int = Field(examples=[7_473])
    num_left_out: int = Field(description="Rows with errors that the import skipped.")
    content_sha256: str
    mapping: dict[str, Any] = Field(
        examples=[{"prompt": "question", "answer": "answer", "columns": []}]
    )
    source_text: str = Field(examples=["uploaded: sums.jsonl"])
    source: dict[str, Any] = Field(
        description="The source as fields: a file, a link, a version or a run.",
        examples=[{"kind": "upload", "filename": "sums.jsonl", "num_bytes": 512_000}],
    )
    environment: dict[str, Any] | None = Field(
        description="Settings of the environment that runs of the version use, where "
        "they differ from the defaults.",
        examples=[{"kind": "guess", "max_tokens": 64}],
    )
    created_at: datetime

    @classmethod
    def of(cls, version: DatasetVersion) -> DatasetVersionOut:
        return fill(cls, version, dataset=version.dataset.name)


class RowOut(Schema):
    position: int = Field(
        description="Index from 0: a run's `prompt_index`.", examples=[0]
    )
    prompt: str | list[dict[str, Any]] = Field(examples=["What is 1 + 1?"])
    answer: str | list[str] | None = Field(
        description="Of a list, any answer is right.", examples=["2"]
    )
    columns: dict[str, Any] = Field(examples=[{"level": 1}])

    @classmethod
    def of(cls, row: DatasetRow) -> RowOut:
        return fill(cls, row, prompt=row.prompt_value, answer=row.answer_value)


class ImportOut(JobOut):
    id: int
    kind: str = Field(
        description="fetch: downloads a file. import: creates a version. "
        "generate: generates rows of a task.",
        examples=["import"],
    )
    filename: str = Field(
        description="File or rows that the import reads.", examples=["sums.jsonl"]
    )
    upload_id: int | None = Field(
        description="Upload that a fetch fills or an import reads.", examples=[6]
    )
    version: DatasetVersionOut | None
    made_version: bool = Field(
        description="False if the newest version already has these rows."
    )
    refusals: dict[str, Any] = Field(
        description="Rows with errors: their count, and the first ones by line."
    )

    @classmethod
    def of(cls, job: ImportJob, *, tells_why: bool = False) -> ImportOut:
        return cls(
            id=job.pk,
            kind=job.kind,
            **job_fields(job, tells_why=tells_why),
            filename=job.filename,
            upload_id=job.upload_id,
            version=DatasetVersionOut.of(job.version) if job.version else None,
            made_version=job.made_version,
            refusals=job.refusals,
        )


def find_version(team: Team, version_id: int) -> DatasetVersion:
    """Find a version of the team that is not in the trash."""
    dataset_version = list_versions(team).filter(pk=version_id).first()
    version = or_404(dataset_version, f"{team} has no dataset version {version_id}.")
    version.dataset.team = team  # avoids a query
    return version


def find_dataset(team: Team, dataset_id: int | None) -> Dataset | None:
    """Find the dataset that gets a new version; None: a new dataset."""
    return get_dataset(team, dataset_id) if dataset_id else None


# Filters and order of a version's rows.


class RowFilters(Input):
    q: Text = Field("", description="Text in the prompt or answer, ignoring case.")
    answer: Text = Field("", description="yes: with an answer. no: without.")
    kind: Text = Field("", description="Kind of prompt: text or chat.")
    min_chars: Length = Field(None, description="Minimum length of the prompt.")
    max_chars: Length = Field(None, description="Maximum length of the prompt.")
    column: Text = Field(
        "",
        description="Extra column that equals `value`, or a path inside one: "
        "`extra_info.level`.",
    )
    value: Text
    sort: Annotated[str, Query("", max_length=1_010)] = Field(
        "",
        description="position, prompt_length, answer, answer_length or column:NAME, "
        "where NAME may be a path too; a leading `-` reverses the order.",
    )


def read_view(version: DatasetVersion, filters: RowFilters) -> RowFilterForm:
    """Read the form of the page; errors name their field."""
    if filters.column and not version.has_column(filters.column):
        columns = ", ".join(version.mapping.get("columns", [])) or "none"
        raise refuse_field(
            "query.column",
            f"{version} has no extra column {filters.column[:60]!r}. It has: "
            f"{columns[:300]}.",
            "datasets.unknown_column",
        )
    view = RowFilterForm.read(version, query_of(filters.model_dump()))
    refuse_errors(view)
    return view


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
