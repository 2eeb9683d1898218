"""Imports: a whole file is recognised, shown, mapped and imported by a job."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.limits import (
    AT_ONCE_BYTES,
    PEEK_BYTES,
    PEEK_ROWS,
    PREVIEW_CHARS,
    PREVIEW_ROWS,
    REPORT_BYTES,
    check_disk_space,
)
from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob, Upload
from dashboard.datasets.parsing.detection import detect, read_records
from dashboard.datasets.parsing.records import (
    ImportRefused,
    Record,
    Refusal,
    Refusals,
    num_chars_of,
)
from dashboard.datasets.parsing.streams import Source
from dashboard.datasets.row import Row
from dashboard.datasets.services import Report, create_dataset_version, do_nothing
from dashboard.datasets.uploads import check_share, check_size
from dashboard.jobs.models import OPEN, JobState
from dashboard.jobs.queue import cancel, enqueue, notify_workers
from dashboard.jobs.runner import run_now
from dashboard.jobs.slots import slot
from dashboard.project.errors import UserError

RETENTION = timedelta(days=7)  # of an upload that is not imported


def store_upload(
    *, team: Team, user: User | None, file: UploadedFile[bytes], dataset: Dataset | None
) -> Upload:
    """Store the file until its columns are mapped; UserError if it cannot be used."""
    filename = (file.name or "file").replace("\x00", "")[-200:]
    num_bytes = file.size or 0
    purge_uploads()
    check_size(filename, num_bytes)
    check_share(team, num_bytes)
    check_disk_space(num_bytes, purpose=filename)
    upload = Upload(
        team=team,
        dataset=dataset,
        filename=filename,
        stored_name=uuid.uuid4().hex,
        num_bytes=num_bytes,
        created_by=user,
    )
    upload.path.parent.mkdir(parents=True, exist_ok=True)
    file.seek(0)
    try:
        with upload.path.open("xb") as target:
            for chunk in file.chunks():
                target.write(chunk)
    except OSError as error:
        upload.path.unlink(missing_ok=True)
        raise UserError(
            "datasets.not_stored",
            f"Cohort could not store {upload.filename} in {settings.COHORT_DATA}: "
            f"{error.strerror}. Free some space, then upload it again.",
        ) from error
    try:
        recognise(upload)
    except ValueError:
        upload.path.unlink()
        raise
    upload.save()
    return upload


def finish_transfer(upload: Upload) -> None:
    """Mark the file as complete; UserError, and deleted, if it cannot be used."""
    num_received = upload.num_received
    if num_received < upload.num_bytes:
        raise UserError(
            "datasets.upload_incomplete",
            f"{upload.filename} is incomplete: {num_received:,} of "
            f"{upload.num_bytes:,} bytes received. Choose the file again to resume.",
        )
    try:
        recognise(upload)
    except ValueError:
        delete_upload(upload)
        raise
    upload.is_whole = True
    upload.save()


def recognise(upload: Upload) -> None:
    detected = detect(upload.filename, upload.path)
    upload.format = detected.format
    upload.packing = detected.packing
    upload.remark = detected.remark


def purge_uploads() -> None:
    """Delete uploads not imported, and jobs ended, a week ago."""
    since = timezone.now() - RETENTION
    imports = ImportJob.objects.filter(upload__isnull=False)
    live = imports.filter(job__state__in=OPEN)
    # The worker may have been killed before it deleted an imported upload.
    done = imports.filter(job__state=JobState.DONE, kind=ImportJob.Kind.IMPORT)
    uploads = Upload.objects.exclude(pk__in=live.values("upload_id"))
    for upload in uploads.filter(
        Q(created_at__lt=since) | Q(pk__in=done.values("upload_id"))
    ):
        delete_upload(upload)
    ImportJob.objects.filter(job__finished_at__lt=since).delete()


def delete_upload(upload: Upload) -> None:
    remove_files(upload)
    upload.delete()


def remove_files(upload: Upload) -> None:
    for file in upload.files:
        file.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peek:
    """The beginning of a file: its column names, first records, first refusals.

    Records of a preview's size: a line of 8 MiB can be 200 MiB of Python objects.
    """

    names: list[str]
    sample: list[Record]  # what is looked at
    records: list[Record]  # what is shown: the first of these
    refusals: Refusals
    is_small: bool  # this is the whole file, so a page may wait for its import


def peek(upload: Upload, *, in_job: bool = False) -> Peek:
    """Raises slots.Busy, except in a job, which has its own slot."""
    names: dict[str, None] = {}
    sample: list[Record] = []
    num_chars = num_items = 0
    refusals = Refusals()
    source = _source(upload, most=PEEK_BYTES)
    is_child = upload.format == Upload.Format.PARQUET and not in_job
    waited = slot() if is_child else nullcontext()
    with waited, closing(read_records(source)) as records:
        for item in islice(records, PEEK_ROWS):
            if source.is_cut:
                break
            num_items += 1
            if isinstance(item, Refusal):
                refusals.add(item)
                continue
            refusals.num_good += 1
            names.update(dict.fromkeys(item.values))
            if num_chars < PREVIEW_CHARS:
                sample.append(item)
            if num_chars <= max(PREVIEW_CHARS, AT_ONCE_BYTES):
                num_chars += num_chars_of(item.values)
    return Peek(
        names=list(names),
        sample=sample,
        records=sample[:PREVIEW_ROWS],
        refusals=refusals,
        is_small=num_items < PEEK_ROWS
        and not source.is_cut
        and max(num_chars, source.num_unpacked) <= AT_ONCE_BYTES,
    )


def try_peek(upload: Upload) -> Peek | None:
    """Peek; None if the file is missing or none of its rows can be read."""
    try:
        seen = peek(upload)
    except FileNotFoundError:
        return None
    return seen if seen.records else None


def map_records(
    upload: Upload, records: list[Record], mapping: Mapping
) -> list[Row | Refusal]:
    is_text = not upload.has_types
    return [map_record(record, mapping, is_text=is_text) for record in records]


def import_upload(
    *,
    upload: Upload,
    mapping: Mapping,
    name: str,
    user: User | None,
    leave_out: int = 0,
    on_read: Report = do_nothing,
    on_stored: Report = do_nothing,
    on_made: Callable[[DatasetVersion], object] = do_nothing,
) -> DatasetVersion:
    """Import every row, or all but exactly `leave_out` rows with errors.

    Any other number of errors raises ImportRefused and imports nothing. `on_read` gets
    the bytes read and the size of the file, `on_stored` the rows stored and the total.
    `on_made` is called last in the transaction that creates a version. An exception
    from any of them rolls the import back.
    """
    refusals = Refusals()
    version = create_dataset_version(
        team=upload.team,
        name=name,
        rows=_rows(upload, mapping, refusals, leave_out, on_read),
        mapping=mapping.as_json(),
        source={
            **upload.lineage,
            "filename": upload.filename,
            "format": upload.format,
            "packing": upload.packing,
            "num_bytes": upload.num_bytes,
        },
        user=user,
        dataset=upload.dataset,
        left_out=refusals,
        on_stored=on_stored,
        on_made=on_made,
    )
    delete_upload(upload)
    return version


def _rows(
    upload: Upload,
    mapping: Mapping,
    refusals: Refusals,
    leave_out: int,
    on_read: Report,
) -> Iterator[Row]:
    is_text = not upload.has_types
    source = _source(upload)
    reported = 0
    for item in read_records(source):
        if source.num_bytes_read - reported >= REPORT_BYTES:
            reported = source.num_bytes_read
            on_read(min(reported, upload.num_bytes), upload.num_bytes)
        row = (
            item
            if isinstance(item, Refusal)
            else map_record(item, mapping, is_text=is_text)
        )
        if isinstance(row, Refusal):
            refusals.add(row)
            continue
        refusals.num_good += 1
        if refusals.count <= leave_out:
            yield row
    if refusals.count and (refusals.count != leave_out or refusals.ends_file):
        # The service has stored nothing yet: it first reads every row.
        raise ImportRefused(refusals)


def _source(upload: Upload, *, most: int | None = None) -> Source:
    if not upload.path.exists():
        raise FileNotFoundError(upload.path)
    return Source(upload.path, upload.format, upload.packing, most=most)


def start_job(
    *,
    upload: Upload,
    mapping: Mapping,
    name: str,
    user: User | None,
    leave_out: int = 0,
) -> tuple[ImportJob, bool]:
    """Start the import. Returns whether it is new: a second click finds the first."""
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
    """Start the download of the file. Returns whether it is new."""
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
    """Create an import and its queued job; start it with `begin_work`."""
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
    """Run a small import in the request; notify the workers of others."""
    assert row.job, "of every import"
    if at_once:
        run_now(row.job)
        row.refresh_from_db()
    else:
        transaction.on_commit(lambda: notify_workers("default"))


@transaction.atomic
def request_stop(row: ImportJob, user: User | None = None) -> bool:
    """Stop it now if no worker has it; False if it has ended.

    Without a user, the stop is part of another action, which has its own audit entry.
    """
    is_requested = cancel(row.job)
    if is_requested and user is not None:
        record(row.team, user, "import.stop_requested", row, name=str(row))
    return is_requested
