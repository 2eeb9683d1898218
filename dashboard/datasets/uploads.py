"""Uploaded files, from the browser's form to rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.datasets.limits import MAX_UPLOAD_BYTES, PEEK_ROWS, PREVIEW_ROWS
from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.models import Dataset, DatasetVersion, Upload
from dashboard.datasets.parsing.detection import detect
from dashboard.datasets.parsing.formats import read_records
from dashboard.datasets.parsing.records import Parsed, Record
from dashboard.datasets.parsing.source import Source
from dashboard.datasets.refusals import ImportRefused, Refusal, Refusals
from dashboard.datasets.rows import Row
from dashboard.datasets.services import create_dataset_version

KEPT = timedelta(days=7)  # an upload that nobody imported


def store_upload(
    *, team: Team, user: User | None, file: UploadedFile[bytes], dataset: Dataset | None
) -> Upload:
    """Keep the file until its columns are mapped; ValueError when it is unfit."""
    filename = (file.name or "file").replace("\x00", "")[-200:]
    num_bytes = file.size or 0
    if num_bytes > MAX_UPLOAD_BYTES:
        raise ValueError(
            f"{filename} has {num_bytes:,} bytes; {MAX_UPLOAD_BYTES:,} are allowed. "
            "Split it into several datasets."
        )
    _forget_old_uploads(team)
    upload = Upload(
        team=team,
        dataset=dataset,
        filename=filename,
        stored_name=uuid.uuid4().hex,
        num_bytes=num_bytes,
        created_by=user,
    )
    _write(upload, file)
    try:
        detected = detect(filename, upload.path)
    except ValueError:
        upload.path.unlink()
        raise
    upload.format = detected.format
    upload.packing = detected.packing
    upload.remark = detected.remark
    upload.save()
    return upload


def _write(upload: Upload, file: UploadedFile[bytes]) -> None:
    upload.path.parent.mkdir(parents=True, exist_ok=True)
    file.seek(0)
    try:
        with upload.path.open("xb") as target:
            for chunk in file.chunks():
                target.write(chunk)
    except OSError as error:
        upload.path.unlink(missing_ok=True)
        raise ValueError(
            f"{upload.filename} could not be stored under {settings.COHORT_DATA}: "
            f"{error.strerror}. Free some space there, then upload it again."
        ) from error


def _forget_old_uploads(team: Team) -> None:
    for upload in team.uploads.filter(created_at__lt=timezone.now() - KEPT):
        forget_upload(upload)


def forget_upload(upload: Upload) -> None:
    upload.path.unlink(missing_ok=True)
    upload.delete()


@dataclass(frozen=True, kw_only=True, slots=True)
class Peek:
    """The beginning of a file: its column names, first records, first refusals."""

    names: list[str]
    records: list[Record]
    refusals: Refusals


def peek(upload: Upload) -> Peek:
    names: dict[str, None] = {}
    records: list[Record] = []
    refusals = Refusals()
    for item in islice(_parse(upload), PEEK_ROWS):
        if isinstance(item, Refusal):
            refusals.add(item)
        else:
            names.update(dict.fromkeys(item.values))
            records.append(item)
    return Peek(names=list(names), records=records[:PREVIEW_ROWS], refusals=refusals)


def map_records(
    upload: Upload, records: list[Record], mapping: Mapping
) -> list[Row | Refusal]:
    is_text = not upload.has_types
    return [map_record(record, mapping, is_text=is_text) for record in records]


def import_upload(
    *, upload: Upload, mapping: Mapping, name: str, user: User | None
) -> DatasetVersion:
    """Every row or none: ImportRefused carries what is wrong with which."""
    version = create_dataset_version(
        team=upload.team,
        name=name,
        rows=_rows(upload, mapping),
        mapping=mapping.as_json(),
        source={
            "kind": "upload",
            "filename": upload.filename,
            "format": upload.format,
            "num_bytes": upload.num_bytes,
        },
        user=user,
        dataset=upload.dataset,
    )
    forget_upload(upload)
    return version


def _rows(upload: Upload, mapping: Mapping) -> Iterator[Row]:
    refusals = Refusals()
    is_text = not upload.has_types
    for item in _parse(upload):
        row = (
            item
            if isinstance(item, Refusal)
            else map_record(item, mapping, is_text=is_text)
        )
        if isinstance(row, Refusal):
            refusals.add(row)
        elif not refusals.count:
            yield row
    if refusals.count:
        # The service has stored nothing yet: it first reads every row.
        raise ImportRefused(refusals)


def _parse(upload: Upload) -> Iterator[Parsed]:
    if not upload.path.exists():
        raise FileNotFoundError(upload.path)
    return read_records(Source(upload.path, upload.format, upload.packing))
