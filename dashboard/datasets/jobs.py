"""Job kinds of datasets: download, import, generate and analyse."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.conf import settings

from dashboard.accounts.models import User
from dashboard.datasets import row_search, splits
from dashboard.datasets.analysis import differences, leaks, results
from dashboard.datasets.fetching.fetches import fetch_upload, host_of, retry_fetch
from dashboard.datasets.imports import (
    import_upload,
    purge_uploads,
    remove_files,
    start_job,
)
from dashboard.datasets.limits import check_disk_space
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import (
    Analysis,
    DatasetVersion,
    ImportJob,
    RowOrder,
    TokenLengths,
    Upload,
    VersionDifference,
    VersionLeak,
    VersionSplit,
    VersionStatistics,
)
from dashboard.datasets.parsing.records import ImportRefused
from dashboard.datasets.queries import find_upload
from dashboard.datasets.selections import (
    make_generated,
    make_selection,
    retry_generation,
    retry_selection,
)
from dashboard.datasets.services import Report
from dashboard.datasets.trash import purge_trash
from dashboard.jobs.kinds import (
    Context,
    JobCancelled,
    Kind,
    LeaseLost,
    register,
    register_purge,
)
from dashboard.jobs.models import JobState
from dashboard.project.errors import UserError

FETCH_TURN_SECONDS = 600.0
QUICK_BYTES_PER_SECOND = 10**6


def fetch(context: Context) -> None:
    """Download the file, or list the splits and files to choose from."""
    row = _row_of(context)
    upload = _upload_of(row)
    host = host_of(upload)

    def gives_way() -> bool:
        """Refuse during a fast download that could not be resumed."""
        num_seconds = time.monotonic() - context.began
        is_quick = context.noted.get("done", 0) > QUICK_BYTES_PER_SECOND * num_seconds
        restarting = Upload.objects.filter(
            pk=upload.pk, source__kind="link", source__seen__validator=""
        )
        return not (is_quick and restarting.exists())

    def report(num_bytes: int, total: int, remark: str) -> None:
        message = remark or f"Downloading from {host}."
        context.progress(num_bytes, total, message=message)

    context.gives_way = gives_way
    context.note(message=f"Connecting to {host}.")
    try:
        fetch_upload(upload, report)
    finally:
        # If the upload was deleted with its dataset, delete its files, too.
        if not Upload.objects.filter(pk=upload.pk).exists():
            remove_files(upload)
    context.note(upload.num_bytes, upload.num_bytes, message="")


def import_rows(context: Context) -> None:
    """Create a version from a file, from selected rows, or from a task."""
    row = _row_of(context)

    def on_generated(done: int, total: int) -> None:
        context.progress(
            done,
            total,
            message="Generating rows." if done else "Starting the task.",
        )

    def on_stored(done: int, total: int) -> None:
        context.progress(done, total, unit="rows", message="Storing rows.")

    def seal(version: DatasetVersion) -> None:
        """Commit the version and the state of its job together."""
        context.note(version.num_rows, version.num_rows, unit="rows")
        same = ImportJob.objects.filter(pk=row.pk)
        if not same.update(version=version, made_version=True):
            raise LeaseLost
        context.seal()

    reads = "Reading rows." if row.upload_id else "Selecting rows."
    if row.is_generated:
        reads = "Starting the task."
    unit = "bytes" if row.upload_id else "rows"
    context.note(0, row.num_to_read, unit=unit, message=reads)
    try:
        if row.is_generated:
            version = make_generated(
                row, on_read=on_generated, on_stored=on_stored, on_made=seal
            )
        elif row.upload_id is None:
            version = make_selection(
                row, on_read=context.progress, on_stored=on_stored, on_made=seal
            )
        else:
            upload = _upload_of(row)
            # Staged on disk; an embedded database stores the rows there again.
            num_bytes = (1 + settings.DATABASE_IS_EMBEDDED) * upload.num_bytes
            check_disk_space(num_bytes, purpose="the import")
            version = import_upload(
                upload=upload,
                mapping=Mapping.from_json(row.mapping),
                name=row.name,
                user=row.created_by,
                leave_out=row.leave_out,
                on_read=context.progress,
                on_stored=on_stored,
                on_made=seal,
            )
    except ImportRefused as refused:
        refusals = refused.refusals
        if context.held().exists():
            ImportJob.objects.filter(pk=row.pk).update(refusals=refusals.as_json())
        raise UserError(
            "datasets.rows_have_errors",
            f"No rows imported: {refusals.count:,} rows have errors.",
        ) from None
    if context.held().exists():  # the version existed: nothing was sealed
        ImportJob.objects.filter(pk=row.pk).update(version=version)


def retry_job(job: ImportJob, user: User) -> ImportJob:
    """Create a new job; return the same one if it is done or its file is deleted."""
    upload = find_upload(job)
    if job.is_fetch:
        return retry_fetch(upload, user) if upload else job
    if job.state == JobState.DONE:
        return job
    if job.is_generated:
        return retry_generation(job, user)
    if job.parent:
        return retry_selection(job, user)[0]
    if upload is None:
        return job
    again, _ = start_job(
        upload=upload,
        mapping=Mapping.from_json(job.mapping),
        name=job.name,
        user=user,
        leave_out=job.leave_out,
    )
    return again


def _row_of(context: Context) -> ImportJob:
    rows = ImportJob.objects.select_related("team", "created_by", "parent", "dataset")
    row = rows.filter(pk=context.job.target_id).first()
    if row is None:
        raise JobCancelled  # it was deleted with its dataset
    return row


def _upload_of(row: ImportJob) -> Upload:
    upload = find_upload(row)
    if upload is None or not (row.is_fetch or upload.path.exists()):
        raise UserError(
            "datasets.file_missing",
            f"The worker did not find {row.filename} in {settings.COHORT_DATA}. Upload "
            "it again. Workers on other machines must share this folder.",
        )
    return upload


def _analysis(
    model: type[Analysis | RowOrder], make: Callable[[int, Report], None]
) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        if not model._default_manager.filter(pk=context.job.target_id).exists():
            raise JobCancelled  # its version was deleted

        def report(done: int, total: int) -> None:
            context.progress(done, total, unit="rows")

        make(context.job.target_id, report)

    return run


register(
    Kind(
        name="dataset.fetch",
        run=fetch,
        noun="download",
        turn_seconds=FETCH_TURN_SECONDS,
        yields_to_own_team=True,
    )
)
for name in ("dataset.import", "dataset.select"):
    register(Kind(name=name, run=import_rows, noun="import", lane="dataset.import"))
register(Kind(name="dataset.generate", run=import_rows, noun="generation"))
for model, make in (
    (RowOrder, row_search.make_order),
    (VersionStatistics, results.make_statistics),
    (TokenLengths, results.make_token_lengths),
    (VersionDifference, differences.make_difference),
    (VersionLeak, leaks.make_leak),
    (VersionSplit, splits.make_split),
):
    register(
        Kind(
            name=model.JOB,
            run=_analysis(model, make),
            noun="analysis",
            lane="dataset.analyse",
        )
    )
register_purge(purge_uploads)
register_purge(purge_trash)
