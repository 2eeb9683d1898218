"""Datasets, their versions and rows, and files that become versions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from django.db import transaction
from django.http import Http404, HttpRequest, QueryDict
from ninja import File, Form, Router, Schema, Status, UploadedFile
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import Problem
from dashboard.api.schemas import Id, Input
from dashboard.datasets.forms.mapping import MappingForm
from dashboard.datasets.imports.jobs import ring_importers, start_job
from dashboard.datasets.imports.uploads import peek, remove_files, store_upload
from dashboard.datasets.limits import AT_ONCE_BYTES
from dashboard.datasets.models import (
    Dataset,
    DatasetRow,
    DatasetVersion,
    ImportJob,
    Upload,
)
from dashboard.datasets.parsing.refusals import Refusals
from dashboard.datasets.queries import get_dataset, get_import_job, list_versions
from dashboard.datasets.work import begin_work

router = Router(tags=["Datasets"], auth=READ)
State = ImportJob.State


class DatasetOut(Schema):
    id: int = Field(examples=[4])
    name: str = Field(examples=["sums"])
    description: str
    created_at: datetime


class DatasetVersionOut(Schema):
    id: int = Field(examples=[12])
    dataset_id: int = Field(examples=[4])
    dataset: str = Field(examples=["sums"])
    number: int = Field(examples=[2])
    num_rows: int = Field(examples=[7_473])
    num_left_out: int = Field(description="Refused rows that were done without.")
    content_sha256: str
    mapping: dict[str, Any] = Field(
        examples=[{"prompt": "question", "answer": "answer", "columns": []}]
    )
    origin: str = Field(description="In words.", examples=["uploaded: sums.jsonl"])
    created_at: datetime


class RowOut(Schema):
    position: int = Field(description="From 0; a run's prompt_index.", examples=[0])
    prompt: str | list[dict[str, Any]] = Field(examples=["What is 1 + 1?"])
    answer: str | None = Field(examples=["2"])
    columns: dict[str, Any] = Field(examples=[{"level": 1}])


class ImportOut(Schema):
    id: int
    state: str = Field(
        description="queued, running, done, refused, failed or cancelled",
        examples=["done"],
    )
    filename: str = Field(examples=["sums.jsonl"])
    num_read: int = Field(description="Bytes of the file.")
    num_to_read: int
    version: DatasetVersionOut | None
    problem: str
    refusals: dict[str, Any] = Field(
        description="Of rows: how many, and the first ones by line."
    )


def _dataset(row: Dataset) -> DatasetOut:
    return DatasetOut(
        id=row.pk, name=row.name, description=row.description, created_at=row.created_at
    )


def version_out(version: DatasetVersion) -> DatasetVersionOut:
    return DatasetVersionOut(
        id=version.pk,
        dataset_id=version.dataset_id,
        dataset=version.dataset.name,
        number=version.number,
        num_rows=version.num_rows,
        num_left_out=version.num_left_out,
        content_sha256=version.content_sha256,
        mapping=version.mapping,
        origin=version.origin,
        created_at=version.created_at,
    )


def _row(row: DatasetRow) -> RowOut:
    prompt = cast("str | list[dict[str, Any]]", row.prompt_value)
    return RowOut(
        position=row.position, prompt=prompt, answer=row.answer, columns=row.columns
    )


def _import(job: ImportJob) -> ImportOut:
    return ImportOut(
        id=job.pk,
        state=job.state,
        filename=job.filename,
        num_read=job.num_read,
        num_to_read=job.num_to_read,
        version=version_out(job.version) if job.version else None,
        problem=job.problem,
        refusals=job.refusals,
    )


@router.get("/datasets", response=Page[DatasetOut], summary="List datasets")
def datasets(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Without those in the trash, the newest first."""
    found = access_of(request).team.datasets.filter(trashed_at=None)
    return page_by(found, _dataset, cursor=cursor, limit=limit, total=found.count())


@router.get("/datasets/{dataset_id}", response=DatasetOut, summary="Look at a dataset")
def dataset(request: HttpRequest, dataset_id: Id) -> DatasetOut:
    return _dataset(get_dataset(access_of(request).team, dataset_id))


@router.get(
    "/datasets/{dataset_id}/versions",
    response=Page[DatasetVersionOut],
    summary="List a dataset's versions",
)
def dataset_versions(
    request: HttpRequest, dataset_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """The newest first. A version never changes."""
    team = access_of(request).team
    own = get_dataset(team, dataset_id)
    found = list_versions(team).filter(dataset=own)
    total = found.count()
    return page_by(found, version_out, cursor=cursor, limit=limit, total=total)


def find_version(team: Team, version_id: int) -> DatasetVersion:
    version = list_versions(team).filter(pk=version_id).first()
    if version is None:
        raise Http404(f"{team} has no dataset version {version_id}.")
    return version


@router.get(
    "/dataset-versions/{version_id}",
    response=DatasetVersionOut,
    summary="Look at a dataset version",
)
def dataset_version(request: HttpRequest, version_id: Id) -> DatasetVersionOut:
    return version_out(find_version(access_of(request).team, version_id))


@router.get(
    "/dataset-versions/{version_id}/rows",
    response=Page[RowOut],
    summary="Read a version's rows",
)
def dataset_rows(
    request: HttpRequest, version_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """In their order."""
    version = find_version(access_of(request).team, version_id)
    return page_by(
        version.rows.all(),
        _row,
        cursor=cursor,
        limit=limit,
        key="position",
        total=version.num_rows,
    )


class ImportIn(Input):
    dataset_id: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = Field(
        default=None,
        description="The rows become its next version; without it, a new dataset.",
    )
    name: str | None = Field(
        default=None,
        max_length=400,
        description="Of a new dataset; without it, as the file is called.",
        examples=["sums"],
    )
    prompt: str | None = Field(
        default=None,
        max_length=1_000,
        description="The prompt's column; without it, guessed by name.",
        examples=["question"],
    )
    answer: str | None = Field(
        default=None,
        max_length=1_000,
        description="The answer's column; empty: no answer; without it, guessed.",
        examples=["answer"],
    )
    columns: list[str] | None = Field(
        default=None,
        max_length=200,
        description="Columns that travel along; without it, as before or as guessed.",
    )
    leave_out: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        default=0, description="How many refused rows you have seen and do without."
    )


@router.post(
    "/imports",
    response={201: ImportOut, 202: ImportOut},
    auth=WRITE,
    summary="Upload rows",
)
def start_import(
    request: HttpRequest, file: File[UploadedFile], payload: Form[ImportIn]
) -> Status[ImportOut]:
    """A file of JSONL, JSON, CSV, TSV or Parquet, up to 32 MiB, becomes a version.

    201: it is made. 202: a worker makes it; ask for the import until it is done.
    Larger files are sent in parts by the dataset page. A bad row refuses them all,
    with its line and a remedy.
    """
    access = access_of(request)
    own = get_dataset(access.team, payload.dataset_id) if payload.dataset_id else None
    try:
        upload = store_upload(
            team=access.team, user=access.user, file=file, dataset=own
        )
    except ValueError as error:
        raise Problem(422, str(error), errors=[("file.file", str(error))]) from error
    try:
        job = _begin(upload, payload, access.user)
    except Problem:
        remove_files(upload)
        raise
    return Status(201 if job.state == State.DONE else 202, _import(job))


def _begin(upload: Upload, payload: ImportIn, user: Any) -> ImportJob:
    seen = peek(upload)
    if not seen.records:
        raise _refused(seen.refusals)
    form = _mapping_form(upload, seen.names, payload)
    job, _ = start_job(
        upload=upload,
        mapping=form.mapping,
        name=form.cleaned_data.get("name", ""),
        user=user,
        leave_out=payload.leave_out,
    )
    if upload.num_bytes > AT_ONCE_BYTES:
        transaction.on_commit(ring_importers)
        return job
    begin_work(job, at_once=True)
    if job.state == State.REFUSED:
        raise _refused(Refusals.from_json(job.refusals))
    if job.state == State.FAILED:
        raise Problem(422, job.problem, errors=[("file.file", job.problem)])
    return job


def _mapping_form(upload: Upload, names: list[str], payload: ImportIn) -> MappingForm:
    guess = MappingForm(upload, names).initial
    data = QueryDict(mutable=True)
    for name in ("name", "prompt", "answer"):
        given = getattr(payload, name)
        data[name] = (guess.get(name) or "") if given is None else given
    columns = guess.get("columns", []) if payload.columns is None else payload.columns
    data.setlist("columns", columns)
    form = MappingForm(upload, names, data)
    if not form.is_valid():
        errors = [
            (f"form.{name}", str(t)) for name, ts in form.errors.items() for t in ts
        ]
        raise Problem(422, errors[0][1], errors=errors)
    return form


def _refused(refusals: Refusals) -> Problem:
    num_rows = f"{refusals.count:,} row{'s were' if refusals.count != 1 else ' was'}"
    return Problem(
        422,
        f"{num_rows} refused, so none was imported. Mend the file, or send "
        f"leave_out: {refusals.count} to do without.",
        errors=[("file.file", str(refusal)) for refusal in refusals.shown[:20]],
    )


@router.get("/imports/{job_id}", response=ImportOut, summary="Look at an import")
def dataset_import(request: HttpRequest, job_id: Id) -> ImportOut:
    return _import(get_import_job(access_of(request).team, job_id))
