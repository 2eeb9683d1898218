"""Large files of a run, sent in parts that can be gone on with."""

from __future__ import annotations

from typing import Annotated

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.attachments import PART, Offset, part_problems, size_of
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.problems import or_refuse
from dashboard.api.resources.run_imports import find_import
from dashboard.api.schemas import Id, Input
from dashboard.exchange.imports.files import append_part, begin_file
from dashboard.exchange.models import ImportFile

router = Router(tags=["Run imports"], auth=READ)
MOST = 2**60


class RunFileOut(Schema):
    id: int = Field(examples=[9])
    filename: str = Field(examples=["completions_00001.parquet"])
    num_bytes: int = Field(examples=[120_000_000])
    num_received: int = Field(
        description="Of them; the next part begins there.", examples=[8_388_608]
    )
    is_whole: bool


def _file(file: ImportFile) -> RunFileOut:
    return RunFileOut(
        id=file.pk,
        filename=file.filename,
        num_bytes=file.num_bytes,
        num_received=file.num_received,
        is_whole=file.is_whole,
    )


class RunFileIn(Input):
    filename: str = Field(min_length=1, max_length=300, examples=["completions.zip"])
    num_bytes: Annotated[int, Field(ge=0, le=MOST)] = Field(examples=[120_000_000])
    fingerprint: str = Field(
        default="",
        max_length=64,
        description="By which you know the file again, such as its SHA-256: begun "
        "again with the same, it is gone on with.",
    )


@router.post(
    "/{import_id}/large-files",
    response=RunFileOut,
    auth=WRITE,
    summary="Begin to send a large file of a run",
)
def begin_run_file(
    request: HttpRequest, import_id: Id, payload: RunFileIn
) -> RunFileOut:
    """Or go on with it; then PUT its parts, and have the import read."""
    found = find_import(access_of(request).team, import_id)
    with or_refuse("body.num_bytes"):
        file = begin_file(found, **payload.model_dump())
    return _file(file)


@router.put(
    "/{import_id}/large-files/{file_id}/parts",
    response=RunFileOut,
    auth=WRITE,
    summary="Send a part of a run's file",
    openapi_extra=PART,
)
def send_run_part(
    request: HttpRequest,
    import_id: Id,
    file_id: Id,
    offset: Offset,
) -> RunFileOut:
    """As the body. 409: the file ends elsewhere; look at it and go on from there."""
    file = _find(access_of(request).team, import_id, file_id)
    with part_problems(lambda: file.num_received, offset):
        append_part(file, offset=offset, part=request, size=size_of(request))
    return _file(file)


def _find(team: Team, import_id: int, file_id: int) -> ImportFile:
    file = find_import(team, import_id).files.filter(pk=file_id).first()
    if file is None:
        raise Http404(f"Import {import_id} has no file {file_id}.")
    return file
