"""Imports and downloads: asked for once, done by a job, stopped, tried again."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.models import ImportJob, Upload
from dashboard.jobs.models import JobState
from dashboard.jobs.queue import cancel, enqueue, notify_workers
from dashboard.jobs.runner import run_now


def start_job(
    *,
    upload: Upload,
    mapping: Mapping,
    name: str,
    user: User | None,
    leave_out: int = 0,
) -> tuple[ImportJob, bool]:
    """The upload's import, and whether it is new: a second click starts nothing."""
    return _start(
        upload,
        user,
        filename=upload.filename,
        num_to_read=upload.num_bytes,
        name=name,
        mapping=mapping.as_json(),
        leave_out=leave_out,
    )


def start_fetch(
    *, upload: Upload, filename: str, user: User | None
) -> tuple[ImportJob, bool]:
    """What brings the file here, and whether it is new."""
    kind = ImportJob.Kind.FETCH
    return _start(upload, user, kind=kind, filename=filename[-200:], num_to_read=0)


@transaction.atomic
def _start(upload: Upload, user: User | None, **fields: Any) -> tuple[ImportJob, bool]:
    # Two clicks would otherwise both find no import of this file.
    Upload.objects.select_for_update(no_key=True).filter(pk=upload.pk).first()
    same = ImportJob.objects.filter(upload=upload).select_related("job")
    last = same.order_by("-pk").first()
    if last and (last.is_open or (last.state == JobState.DONE and not last.is_fetch)):
        return last, False
    return begin(team=upload.team, upload=upload, created_by=user, **fields), True


def begin(**fields: Any) -> ImportJob:
    """A new import and its job, which waits for `begin_work`."""
    row = ImportJob.objects.create(**fields)
    row.job = enqueue(
        row.job_kind,
        row.pk,
        team_id=row.team_id,
        user=row.created_by,
        total=row.num_to_read,
        unit="bytes" if row.upload_id else "rows",
        notify=False,
    )
    row.save(update_fields=["job"])
    return row


def begin_work(row: ImportJob, *, at_once: bool) -> None:
    """Do what is small while the page is made; wake the workers for the rest."""
    assert row.job, "of every import"
    if at_once:
        run_now(row.job)
        row.refresh_from_db()
    else:
        transaction.on_commit(lambda: notify_workers("default"))


@transaction.atomic
def request_stop(row: ImportJob, user: User | None = None) -> bool:
    """Stop it now where no worker has it; False when it has ended.

    Without a user it is part of another act, which is written down by itself.
    """
    is_asked = cancel(row.job)
    if is_asked and user is not None:
        record(row.team, user, "import.stop_requested", row, name=str(row))
    return is_asked
