"""Large dataset files, sent in resumable parts, or fetched from a link or the hub."""

from __future__ import annotations

from typing import Annotated

from django.db import transaction
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.dataset_imports import MappingIn, answer_import, begin_import
from dashboard.api.datasets import ImportOut, find_dataset
from dashboard.api.problems import Problem, or_conflict, or_refuse
from dashboard.api.schemas import (
    PART,
    Done,
    Id,
    IdIn,
    Input,
    Offset,
    fill,
    part_problems,
    size_of,
)
from dashboard.datasets.fetching.fetches import begin_fetch, choices_of
from dashboard.datasets.fetching.links import read
from dashboard.datasets.imports import (
    delete_upload,
    finish_transfer,
    purge_uploads,
    try_peek,
)
from dashboard.datasets.models import Upload
from dashboard.datasets.queries import get_import_job, get_upload, live_or_done_job
from dashboard.datasets.uploads import append_part, begin_transfer
from dashboard.jobs.queue import notify_workers
from dashboard.project.errors import or_404

router = Router(tags=["Dataset uploads"], auth=READ)
fetches_router = Router(tags=["Dataset uploads"], auth=WRITE)


class ChoiceOut(Schema):
    name: str = Field(examples=["main/train"])
    is_split: bool = Field(description="False for a single file.")
    num_bytes: int = Field(examples=[2_300_000])


class UploadOut(Schema):
    id: int = Field(examples=[6])
    filename: str = Field(examples=["sums.jsonl.gz"])
    dataset_id: int | None = Field(
        description="Dataset that gets a new version. Null: a new dataset."
    )
    num_bytes: int = Field(examples=[120_000_000])
    num_received: int = Field(
        description="Bytes received so far: the offset of the next part.",
        examples=[8_388_608],
    )
    is_whole: bool
    format: str = Field(
        description="jsonl, json, csv, tsv or parquet. Empty until the file is "
        "complete.",
        examples=["jsonl"],
    )
    packing: str = Field(
        description="Compression: gzip, zstd or empty.", examples=["gzip"]
    )
    remark: str
    choices: list[ChoiceOut] = Field(
        description="Splits and files of a Hub dataset, until one is chosen."
    )

    @classmethod
    def of(cls, upload: Upload) -> UploadOut:
        choices = [fill(ChoiceOut, choice) for choice in choices_of(upload)]
        return fill(cls, upload, choices=choices)


class UploadIn(Input):
    filename: str = Field(min_length=1, max_length=1_000, examples=["sums.jsonl.gz"])
    num_bytes: Annotated[int, Field(ge=0, le=2**60)] = Field(examples=[120_000_000])
    fingerprint: str = Field(
        min_length=1,
        max_length=64,
        description="Identifies the file, such as its SHA-256. A second request with "
        "the same fingerprint resumes the upload.",
        examples=["sums 120000000"],
    )
    dataset_id: IdIn | None = Field(
        default=None,
        description="Dataset that gets a new version. Null: a new dataset.",
    )


@router.post("", response=UploadOut, auth=WRITE, summary="Start or resume an upload")
def begin_dataset_upload(request: ApiRequest, payload: UploadIn) -> UploadOut:
    """Your unfinished upload of the same file is resumed from `num_received`.

    Then PUT its parts, and import it.
    """
    dataset = find_dataset(request.auth.team, payload.dataset_id)
    purge_uploads()
    with or_refuse("body.num_bytes"):
        upload = begin_transfer(
            team=request.auth.team,
            user=request.auth.user,
            dataset=dataset,
            filename=payload.filename,
            num_bytes=payload.num_bytes,
            fingerprint=payload.fingerprint,
        )
    return UploadOut.of(upload)


@router.get("/{upload_id}", response=UploadOut, summary="Get an upload")
def dataset_upload(request: ApiRequest, upload_id: Id) -> UploadOut:
    """Return the upload with the bytes received so far."""
    return UploadOut.of(get_upload(request.auth.team, upload_id))


@router.put(
    "/{upload_id}/parts",
    response=UploadOut,
    auth=WRITE,
    summary="Send a part of an upload",
    openapi_extra=PART,
)
def send_dataset_part(request: ApiRequest, upload_id: Id, offset: Offset) -> UploadOut:
    """Append the body. 409: `offset` is not `num_received`; get the upload."""
    with part_problems(
        lambda: get_upload(request.auth.team, upload_id).num_received, offset
    ):
        upload = append_part(
            team=request.auth.team,
            user=request.auth.user,
            upload_id=upload_id,
            offset=offset,
            part=request,
            size=size_of(request),
        )
    return UploadOut.of(upload)


@router.post(
    "/{upload_id}/import",
    response={201: ImportOut, 202: ImportOut},
    auth=WRITE,
    summary="Import an upload",
)
def import_dataset_upload(
    request: ApiRequest, upload_id: Id, payload: MappingIn
) -> Status[ImportOut]:
    """Import the file; nothing if a row has errors: the response lists them by line."""
    upload = (
        request.auth.team.uploads.select_related("dataset").filter(pk=upload_id).first()
    )
    if job := live_or_done_job(request.auth.team, upload_id):
        return answer_import(job)
    upload = or_404(upload, f"{request.auth.team} has no upload {upload_id}.")
    if not upload.is_whole:
        if upload.is_linked:
            message = "A worker is downloading this file. Wait until the fetch is done."
            raise Problem(409, message, code="datasets.download_running")
        with or_conflict():
            finish_transfer(upload)
    seen = try_peek(upload)
    if seen is None:
        raise Problem(
            409,
            f"The file {upload.filename} is missing, or none of its rows can be read. "
            "Delete the upload, then send the file again.",
            code="datasets.file_missing",
        )
    job = begin_import(
        upload, seen, payload, request.auth.user, place="body", file_field="body"
    )
    return answer_import(job)


@router.delete("/{upload_id}", response=Done, auth=WRITE, summary="Discard an upload")
def discard_dataset_upload(request: ApiRequest, upload_id: Id) -> Done:
    """Versions imported from it are kept."""
    upload = get_upload(request.auth.team, upload_id)
    if job := live_or_done_job(request.auth.team, upload_id):
        return Done(
            done=False, detail=f"Import {job.pk} of this upload is {job.state}."
        )
    delete_upload(upload)
    return Done(done=True)


# Files that a worker fetches: from a link, or from a dataset of the hub.


class FetchIn(Input):
    link: str = Field(
        min_length=1,
        max_length=4_000,
        description="URL of a file, or Hugging Face dataset ID.",
        examples=["openai/gsm8k"],
    )
    revision: str = Field(
        default="", max_length=200, description="Of a Hub dataset. Empty: main."
    )
    part: str = Field(
        default="",
        max_length=500,
        description="Split or file of a Hub dataset. Empty: the upload lists them.",
        examples=["main/train"],
    )
    dataset_id: IdIn | None = Field(
        default=None,
        description="Dataset that gets a new version. Null: a new dataset.",
    )


@fetches_router.post(
    "/dataset-fetches", response={202: ImportOut}, summary="Fetch a file from a link"
)
def fetch_dataset(request: ApiRequest, payload: FetchIn) -> Status[ImportOut]:
    """Queue the download: poll the import until it is done.

    Then import its upload, or fetch one of its `choices` as `part`.
    """
    dataset = find_dataset(request.auth.team, payload.dataset_id)
    with or_refuse("body.link"):
        link = read(payload.link, revision=payload.revision, part=payload.part)
        purge_uploads()
        job = begin_fetch(
            team=request.auth.team, user=request.auth.user, link=link, dataset=dataset
        )
    transaction.on_commit(lambda: notify_workers("default"))
    return Status(202, ImportOut.of(get_import_job(request.auth.team, job.pk)))
