"""Jobs of an import: its files are read, then its run is made."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from dashboard.datasets.limits import check_disk_space
from dashboard.jobs.kinds import (
    Context,
    JobCancelled,
    Kind,
    LeaseLost,
    register,
    register_purge,
)
from dashboard.jobs.queue import enqueue, notify_workers
from dashboard.jobs.runner import run_now
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from dashboard.transfers.import_files import (
    is_quick,
    purge_imports,
    remove_files,
    unpack,
)
from dashboard.transfers.import_preview import Findings
from dashboard.transfers.import_reader import read_files
from dashboard.transfers.import_runs import make_run
from dashboard.transfers.models import RunImport


def read(context: Context) -> None:
    run_import = _row_of(context)
    try:
        unpack(run_import)
        total = _num_bytes(run_import)
        context.note(0, total, unit="bytes", message="Reading the files.")
        findings = Findings()
        files = run_import.files.order_by("pk")
        for row in read_files(files, on_read=context.progress):
            findings.add(row)
    except FileNotFoundError:
        raise _missing_file() from None
    context.note(total)
    if context.held().exists():
        RunImport.objects.filter(pk=run_import.pk).update(findings=findings.as_json())


def make(context: Context) -> None:
    """Make all of it in one transaction, or nothing."""
    run_import = _row_of(context)

    def on_stored(done: int, total: int) -> None:
        context.progress(done, total, unit="steps", message="Storing the steps.")

    def seal(run: Run) -> None:
        """Save the run and the end of the job, which become visible together."""
        if not RunImport.objects.filter(pk=run_import.pk).update(run=run):
            raise LeaseLost
        context.seal()

    # Items are buffered on disk, which may also hold the embedded database.
    total = _num_bytes(run_import)
    check_disk_space(3 * total, purpose="the import")
    context.note(0, total, unit="bytes", message="Reading the files.")
    try:
        make_run(
            run_import, on_read=context.progress, on_stored=on_stored, on_made=seal
        )
    except FileNotFoundError:
        raise _missing_file() from None
    remove_files(run_import)


def _row_of(context: Context) -> RunImport:
    rows = RunImport.objects.select_related("team", "created_by")
    row = rows.filter(pk=context.job.target_id).first()
    if row is None:
        raise JobCancelled  # it was discarded
    return row


def _num_bytes(run_import: RunImport) -> int:
    return sum(run_import.files.values_list("num_bytes", flat=True))


def _missing_file() -> ValueError:
    return ValueError(
        f"A file of the import is missing under {settings.COHORT_DATA} on the "
        "worker. Upload the files again, and share that folder with workers on "
        "other machines."
    )


def start_reading(run_import: RunImport) -> bool:
    """Queue reading the files. UserError if there are none, or some are incomplete."""
    files = list(run_import.files.all())
    unfinished = [file.filename for file in files if not file.is_whole]
    if not files:
        raise UserError(
            "run_imports.no_files",
            "This import has no files. Upload at least one.",
        )
    if unfinished:
        raise UserError(
            "run_imports.incomplete_files",
            f"{len(unfinished):,} of {len(files):,} files are incomplete, such as "
            f"{unfinished[0]}. Choose the same files again, or send the missing parts.",
        )
    return start(run_import, RunImport.READ)


def start(run_import: RunImport, kind: str, **fields: Any) -> bool:
    """Queue reading or making the run; False if it is running, or has a run.

    Small imports are done at once, while the page waits.
    """
    with transaction.atomic():
        locked = RunImport.objects.select_for_update(of=("self",))
        row = locked.select_related("job").get(pk=run_import.pk)
        if row.is_open or row.run_id:
            return False
        for name, value in fields.items():
            setattr(row, name, value)
        row.job = job = enqueue(
            kind,
            row.pk,
            team_id=row.team_id,
            user=row.created_by,
            total=_num_bytes(row),
            unit="bytes",
            notify=False,
        )
        row.save(update_fields=["job", *fields])
    if is_quick(row):
        run_now(job)
    else:
        transaction.on_commit(lambda: notify_workers("default"))
    run_import.refresh_from_db()
    return True


for name, run in ((RunImport.READ, read), (RunImport.MAKE, make)):
    register(Kind(name=name, run=run, noun="import of a run", lane="run_import"))
register_purge(purge_imports)
