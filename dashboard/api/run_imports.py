"""Run imports: files of other tools are uploaded, read and made into a run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.db.models import Count, QuerySet, Sum
from ninja import Query, Router, Schema, Status
from pydantic import Field

from cohort.lines import plain
from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import Problem, or_conflict, or_refuse, refuse_field
from dashboard.api.schemas import (
    PART,
    Cursor,
    Done,
    Id,
    Input,
    JobOut,
    Limit,
    Offset,
    Page,
    Person,
    Real,
    S,
    fill,
    job_fields,
    page_by,
    part_problems,
    query_of,
    refuse_errors,
    size_of,
)
from dashboard.jobs.queue import reap_of
from dashboard.project.errors import or_404
from dashboard.transfers import jobs
from dashboard.transfers.import_files import (
    append_part,
    begin_file,
    begin_import,
    discard,
)
from dashboard.transfers.import_preview import WEIGHT, MakeForm
from dashboard.transfers.models import RunImport

router = Router(tags=["Run imports"], auth=READ)


class RunImportOut(JobOut):
    id: int = Field(examples=[3])
    phase: str = Field(description="read or make", examples=["read"])
    state: str = Field(
        description="open until the files are read; then the state of the job",
        examples=["done"],
    )
    num_files: int = Field(examples=[2])
    num_bytes: int = Field(examples=[120_000])
    run_id: int | None = Field(description="Run created from the import.", examples=[7])
    created_by: Person | None
    created_at: datetime


class RunFileOut(Schema):
    filename: str = Field(examples=["completions_00001.parquet"])
    num_bytes: int = Field(examples=[120_000_000])
    num_received: int = Field(
        description="Bytes received; the next part starts there.", examples=[8_388_608]
    )
    is_whole: bool


class RunImportDetail(RunImportOut):
    unfinished: list[RunFileOut] = Field(description="Incomplete files.")
    findings: dict[str, Any] = Field(
        description="What the files contain, once they are read: tools, steps, "
        "metrics, samples, scores, invalid rows.",
        examples=[{"tools": ["TRL"], "num_points": 120}],
    )


def _import(shape: type[S], row: Any, *, tells_why: bool = False, **fields: Any) -> S:
    fields |= job_fields(row, state="open", tells_why=tells_why)
    fields |= {"num_bytes": row.num_bytes or 0}
    return fill(shape, row, created_by=Person.of(row.created_by), **fields)


def _counted(team: Team) -> QuerySet[RunImport]:
    imports = RunImport.objects.filter(team=team).select_related(
        "team", "created_by", "job"
    )
    return imports.annotate(num_files=Count("files"), num_bytes=Sum("files__num_bytes"))


def find_import(team: Team, import_id: int) -> RunImport:
    import_ = _counted(team).filter(pk=import_id).first()
    return or_404(import_, f"{team} has no run import {import_id}.")


def _detail(team: Team, import_id: int) -> RunImportDetail:
    import_ = find_import(team, import_id)
    findings = {} if import_.is_open else plain(import_.findings)
    return _import(
        RunImportDetail,
        import_,
        tells_why=True,
        unfinished=[
            fill(RunFileOut, file) for file in import_.files.all() if not file.is_whole
        ],
        findings=findings,
    )


@router.get("", response=Page[RunImportOut], summary="List run imports")
def run_imports(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first, including finished imports. Imports are kept for a week."""
    imports = _counted(request.auth.team)
    return page_by(
        imports, lambda row: _import(RunImportOut, row), cursor=cursor, limit=limit
    )


@router.get("/{import_id}", response=RunImportDetail, summary="Get a run import")
def run_import(request: ApiRequest, import_id: Id) -> RunImportDetail:
    """Return an import with the contents of its files."""
    # Also here, because the lost worker may be the one that reaps jobs.
    reap_of(find_import(request.auth.team, import_id))
    return _detail(request.auth.team, import_id)


@router.post(
    "", response={201: RunImportDetail}, auth=WRITE, summary="Start a run import"
)
def begin_run_import(request: ApiRequest) -> Status[RunImportDetail]:
    """Start an import without files. Upload files, read them, then create the run."""
    with or_conflict():
        begun = begin_import(request.auth.team, request.auth.user)
    return Status(201, _detail(request.auth.team, begun.pk))


class RunFileIn(Schema):
    filename: str = Field(min_length=1, max_length=300, examples=["completions.zip"])
    num_bytes: int = Field(
        ge=1, le=2**60, description="Size of the complete file.", examples=[120_000_000]
    )
    fingerprint: str = Field(
        "",
        max_length=64,
        description="Identifies the file when you resume, such as its SHA-256.",
    )


@router.put(
    "/{import_id}/files",
    response=RunFileOut,
    auth=WRITE,
    summary="Upload a file of a run",
    openapi_extra=PART,
)
def send_run_file(
    request: ApiRequest, import_id: Id, sent: Query[RunFileIn], offset: Offset
) -> RunFileOut:
    """Send the file as the body, complete or in parts; a zip may contain several files.

    409: the offset is wrong; `unfinished` of the import gives the right one.
    """
    import_ = find_import(request.auth.team, import_id)
    with or_refuse("query.num_bytes"):
        file = begin_file(import_, **sent.model_dump())
    with part_problems(lambda: file.num_received, offset):
        append_part(file, offset=offset, part=request, size=size_of(request))
    return fill(RunFileOut, file)


@router.post(
    "/{import_id}/read",
    response={202: RunImportDetail},
    auth=WRITE,
    summary="Read the files of a run import",
)
def read_run_import(request: ApiRequest, import_id: Id) -> Status[RunImportDetail]:
    """Reads small files now, others in a worker: poll until the state is done."""
    import_ = find_import(request.auth.team, import_id)
    with or_conflict():
        _refuse_unless(jobs.start_reading(import_), import_)
    return Status(202, _detail(request.auth.team, import_id))


class RunImportMakeIn(Input):
    name: str = Field(min_length=1, max_length=80, examples=["warm-otter"])
    model: str = Field(default="", max_length=200, examples=["Qwen2.5-0.5B"])
    wandb_run: str | None = Field(
        default=None,
        max_length=300,
        description="W&B run to import, if the files contain several.",
    )
    right_from: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None,
        description="Completions with at least this reward are correct. Default: the "
        "highest reward. null: unknown.",
    )
    computes_advantages: bool = Field(
        default=False,
        description="Compute missing advantages from each group's rewards.",
    )
    leave_out: bool = Field(
        default=False, description="Leave out invalid rows and files."
    )
    weights: dict[str, Real] = Field(
        default={},
        description="Weights of the rule columns. Default: the weights of the tool. "
        "null: the column is not a rule.",
        examples=[{"accuracy": 1.0}],
    )


@router.post(
    "/{import_id}/make",
    response={202: RunImportDetail},
    auth=WRITE,
    summary="Create the run of an import",
)
def make_run_import(
    request: ApiRequest, import_id: Id, payload: RunImportMakeIn
) -> Status[RunImportDetail]:
    """Creates the run from the files; `run_id` names it once the state is done."""
    import_ = find_import(request.auth.team, import_id)
    read = import_.findings if not import_.is_open else {}
    if not read or not (read["num_samples"] or read["num_points"]):
        raise Problem(
            409,
            "The import has no data to create a run from. Read its files first.",
            code="run_imports.not_read",
        )
    defaults = MakeForm(import_).weights
    if unknown := [name for name in payload.weights if name not in defaults]:
        message = f"The files have no score column {unknown[0][:80]!r}."
        raise refuse_field("body.weights", message, code="run_imports.no_column")
    values = payload.model_dump(exclude={"weights"})
    if "right_from" not in payload.model_fields_set:
        values["right_from"] = import_.findings["highest"]  # as the page proposes
    weights = {WEIGHT + k: v for k, v in {**defaults, **payload.weights}.items()}
    form = MakeForm(import_, query_of({**values, **weights}))
    form.is_valid()
    refuse_errors(
        form, place="body", names={WEIGHT + k: f"weights.{k}" for k in defaults}
    )
    is_queued = jobs.start(import_, RunImport.MAKE, choices=form.choices)
    _refuse_unless(is_queued, import_)
    return Status(202, _detail(request.auth.team, import_id))


def _refuse_unless(is_queued: bool, import_: RunImport) -> None:
    if not is_queued:
        is_made = import_.run_id is not None
        message = (
            "The import already has a run." if is_made else "The import is running."
        )
        code = "run_imports.has_run" if is_made else "run_imports.running"
        raise Problem(409, message, code=code)


@router.delete(
    "/{import_id}", response=Done, auth=WRITE, summary="Discard a run import"
)
def discard_run_import(request: ApiRequest, import_id: Id) -> Done:
    """Deletes the import and its files; the run stays. 409 while it is running."""
    import_ = find_import(request.auth.team, import_id)
    if import_.is_open:
        raise Problem(
            409, "The import is running. Stop it first.", code="run_imports.running"
        )
    discard(import_)
    return Done(done=True)
