"""Files that become versions, and how far that is."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import File, Form, Router, Status, UploadedFile
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.problems import or_refuse
from dashboard.api.resources.datasets.mapping import (
    MappingIn,
    begin_import,
    refuse_rows,
)
from dashboard.api.resources.datasets.schemas import ImportOut, Number, find_dataset
from dashboard.api.schemas import Done, Id
from dashboard.datasets.imports import forget_upload, peek, request_stop, store_upload
from dashboard.datasets.models import ImportJob
from dashboard.datasets.queries import get_import_job
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import reap_of

router = Router(tags=["Datasets"], auth=READ)
PLACE = "file.file"


class ImportIn(MappingIn):
    dataset_id: Number | None = Field(
        default=None,
        description="The rows become its next version; without it, a new dataset.",
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
    Larger files are sent in parts (`/dataset-uploads`). A bad row refuses them all,
    with its line and a remedy.
    """
    access = access_of(request)
    own = find_dataset(access.team, payload.dataset_id)
    team, user = access.team, access.user
    with or_refuse(PLACE):
        upload = store_upload(team=team, user=user, file=file, dataset=own)
    try:
        seen = peek(upload)
        if not seen.records:
            raise refuse_rows(seen.refusals, PLACE)
        job = begin_import(
            upload, seen, payload, access.user, place="form", place_of_file=PLACE
        )
    except Exception:  # nobody else knows of it
        forget_upload(upload)
        raise
    return answer_import(job)


def answer_import(job: ImportJob) -> Status[ImportOut]:
    """201: it is done; 202: a worker goes on with it."""
    is_done = job.state == JobState.DONE
    return Status(201 if is_done else 202, ImportOut.of(job))


@router.get("/imports/{job_id}", response=ImportOut, summary="Look at an import")
def dataset_import(request: HttpRequest, job_id: Id) -> ImportOut:
    """Ask again until its state is done, failed or cancelled."""
    team = access_of(request).team
    # Here as well, as the worker that ended may be the one that looks for such jobs.
    reap_of(get_import_job(team, job_id))
    return ImportOut.of(get_import_job(team, job_id), tells_why=True)


@router.post(
    "/imports/{job_id}/stop", response=Done, auth=WRITE, summary="Stop an import"
)
def stop_import(request: HttpRequest, job_id: Id) -> Done:
    """Nothing of it is kept, but the file is."""
    access = access_of(request)
    job = get_import_job(access.team, job_id)
    if request_stop(job, access.user):
        return Done(done=True)
    return Done(done=False, detail=f"It had ended already: it is {job.state}.")
