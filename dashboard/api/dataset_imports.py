"""Imports of dataset files: the column mapping and the progress."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import QueryDict
from ninja import File, Form, Router, Status, UploadedFile
from pydantic import Field, ValidationError

from dashboard.accounts.models import User
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.datasets import ImportOut, find_dataset, find_version
from dashboard.api.problems import (
    Problem,
    WrongField,
    or_refuse,
    refuse_field,
)
from dashboard.api.schemas import Done, Id, IdIn, Input, refuse_errors
from dashboard.datasets.environments import read_environment, save_environment
from dashboard.datasets.import_forms import TAKEN, MappingForm
from dashboard.datasets.imports import (
    Peek,
    begin_work,
    delete_upload,
    peek,
    request_stop,
    start_job,
    store_upload,
)
from dashboard.datasets.models import ImportJob, Upload
from dashboard.datasets.parsing.records import Refusals
from dashboard.datasets.prompt_template import MAX_TEMPLATE_CHARS
from dashboard.datasets.queries import get_import_job
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import reap_of
from dashboard.project.schema_forms import message_of

router = Router(tags=["Datasets"], auth=READ)
FILE_FIELD = "file.file"


class MappingIn(Input):
    name: str | None = Field(
        default=None,
        max_length=400,
        description="Name of a new dataset. Default: the name of the file.",
        examples=["sums"],
    )
    prompt: str | None = Field(
        default=None,
        max_length=1_000,
        description="Prompt column, or a path into one such as "
        "extra_info.question. Default: that of the previous version, else "
        "suggested by the columns.",
        examples=["question"],
    )
    template: str | None = Field(
        default=None,
        max_length=MAX_TEMPLATE_CHARS,
        description="Prompt template (Jinja) over the columns, instead of a prompt "
        "column. Default: that of the previous version, else suggested by the columns.",
        examples=["{{ instruction }}\n\n{{ input }}"],
    )
    answer: str | None = Field(
        default=None,
        max_length=1_000,
        description="Answer column, or a path into one such as "
        "reward_model.ground_truth. Empty: no answer. Default: that of the previous "
        "version, else suggested by the columns.",
        examples=["answer"],
    )
    columns: list[str] | None = Field(
        default=None,
        max_length=200,
        description="Extra columns to keep. Default: all other columns.",
    )
    system: str | None = Field(
        default=None,
        max_length=1_000,
        description="Column with the system message of each prompt, or a path into "
        "one. Empty: none. Default: that of the previous version, else suggested by "
        "the columns.",
        examples=["system_prompt"],
    )
    last_reply: Literal["answer", "prefill", "drop", "refuse"] | None = Field(
        default=None,
        description="What the last assistant message of a chat is: the answer, a "
        "prefill that completions continue, removed or an error. Default: as the "
        "previous version, else the answer.",
    )
    leave_out: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        default=0,
        description="Skip rows with errors if there are exactly this many.",
    )


def map_columns(
    upload: Upload, seen: Peek, payload: MappingIn, *, place: str
) -> MappingForm:
    """Return the valid form of the page; errors name their field."""
    guess = MappingForm(upload, seen).initial
    data = QueryDict(mutable=True)
    for name in ("name", "prompt", "template", "answer", "system", "last_reply"):
        value = getattr(payload, name)
        data[name] = (guess.get(name) or "") if value is None else value
    if payload.template and payload.prompt:
        raise refuse_field(
            f"{place}.template",
            "Send a prompt column or a template, not both.",
            "datasets.prompt_and_template",
        )
    if payload.template:
        data["prompt"] = ""
    columns = guess.get("columns", []) if payload.columns is None else payload.columns
    data.setlist("columns", columns)
    form = MappingForm(upload, seen, data)
    if form.has_error("name", TAKEN):
        (error,) = form.errors.as_data()["name"]
        assert error.params is not None
        existing = error.params["dataset"]
        # With a remedy for a program instead of a page.
        message = (
            f'{existing.team} already has a dataset named "{existing.name}". Choose '
            f"another name, or send dataset_id: {existing.pk} to add the rows as its "
            "next version."
        )
        raise refuse_field(f"{place}.name", message, "datasets.name_taken")
    refuse_errors(form, place=place)
    return form


def begin_import(
    upload: Upload,
    seen: Peek,
    payload: MappingIn,
    user: User,
    *,
    place: str,
    file_field: str,
) -> ImportJob:
    """Import a small file now, others by a worker.

    Errors of columns name a field in `place`, those of rows `file_field`.
    """
    form = map_columns(upload, seen, payload, place=place)
    job, is_new = start_job(
        upload=upload,
        mapping=form.mapping,
        name=form.cleaned_data.get("name", ""),
        user=user,
        leave_out=payload.leave_out,
    )
    if not is_new:
        return job
    begin_work(job, at_once=seen.is_small)
    if job.is_refused:
        raise refuse_rows(Refusals.from_json(job.refusals), file_field)
    if job.state == JobState.FAILED:
        raise refuse_field(file_field, job.error, "datasets.import_failed")
    return job


def refuse_rows(refusals: Refusals, place: str) -> Problem:
    num_rows = f"{refusals.count:,} row{'s have' if refusals.count != 1 else ' has'}"
    return Problem(
        422,
        f"No rows imported: {num_rows} errors. Fix the file, or send "
        f"leave_out: {refusals.count} to import the others.",
        code="datasets.rows_have_errors",
        errors=[WrongField(place, str(group)) for group in refusals.groups[:20]],
    )


class ImportIn(MappingIn):
    dataset_id: IdIn | None = Field(
        default=None,
        description="Dataset that gets a new version. Default: a new dataset.",
    )


@router.post(
    "/imports",
    response={201: ImportOut, 202: ImportOut},
    auth=WRITE,
    summary="Upload rows",
)
def start_import(
    request: ApiRequest, file: File[UploadedFile], payload: Form[ImportIn]
) -> Status[ImportOut]:
    """Import a JSONL, JSON, CSV, TSV or Parquet file of up to 32 MiB as a version.

    201: the import is done. 202: a worker runs it; poll the import until it is done.
    Send larger files in parts (`/dataset-uploads`). If a row has errors, nothing is
    imported and the response lists the errors by line.
    """
    own = find_dataset(request.auth.team, payload.dataset_id)
    team, user = request.auth.team, request.auth.user
    with or_refuse(FILE_FIELD):
        upload = store_upload(team=team, user=user, file=file, dataset=own)
    try:
        seen = peek(upload)
        if not seen.records:
            raise refuse_rows(seen.refusals, FILE_FIELD)
        job = begin_import(
            upload,
            seen,
            payload,
            request.auth.user,
            place="form",
            file_field=FILE_FIELD,
        )
    except Exception:  # the client does not know the upload
        delete_upload(upload)
        raise
    return answer_import(job)


def answer_import(job: ImportJob) -> Status[ImportOut]:
    """Return 201 if it is done; 202 while a worker runs it."""
    is_done = job.state == JobState.DONE
    return Status(201 if is_done else 202, ImportOut.of(job))


class EnvironmentIn(Input):
    environment: dict[str, Any] = Field(
        description="Settings of the part `environment` of a run's configuration. "
        "Empty: none.",
        examples=[{"kind": "guess", "max_tokens": 64}],
    )


@router.post(
    "/dataset-versions/{version_id}/environment",
    response={201: ImportOut, 202: ImportOut},
    auth=WRITE,
    summary="Make a version with an environment",
)
def set_environment(
    request: ApiRequest, version_id: Id, payload: EnvironmentIn
) -> Status[ImportOut]:
    """Make the dataset's next version: the same rows with this environment.

    201 and 202 as for an import.
    """
    version = find_version(request.auth.team, version_id)
    try:
        environment = read_environment(payload.environment)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = ".".join(map(str, ("body", "environment", *fault["loc"])))
        code = "datasets.invalid_environment"
        raise refuse_field(path[:200], message_of(fault), code) from error
    with or_refuse("body.environment"):
        job = save_environment(version, environment, user=request.auth.user)
    return answer_import(get_import_job(request.auth.team, job.pk))


@router.get("/imports/{job_id}", response=ImportOut, summary="Get an import")
def dataset_import(request: ApiRequest, job_id: Id) -> ImportOut:
    """Poll it until its state is done, failed or cancelled."""
    # Also here, as the lost worker may be the one that reaps jobs.
    reap_of(get_import_job(request.auth.team, job_id))
    return ImportOut.of(get_import_job(request.auth.team, job_id), tells_why=True)


@router.post(
    "/imports/{job_id}/stop", response=Done, auth=WRITE, summary="Stop an import"
)
def stop_import(request: ApiRequest, job_id: Id) -> Done:
    """Stop the import. The file is kept; no rows are stored."""
    job = get_import_job(request.auth.team, job_id)
    is_done = request_stop(job, request.auth.user)
    return Done.or_state(is_done, job, "The import has already ended:")
