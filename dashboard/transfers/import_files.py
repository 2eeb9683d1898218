"""The files of an import: uploaded complete or in parts, unpacked from zip archives."""

from __future__ import annotations

import errno
import lzma
import shutil
import uuid
import zipfile
import zlib
from contextlib import closing, nullcontext
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from dashboard.accounts.members import check_storage
from dashboard.accounts.models import Team, User
from dashboard.datasets.limits import (
    AT_ONCE_BYTES,
    MAX_TEAM_BYTES,
    MAX_UNPACKED_RATIO,
    MAX_UPLOAD_BYTES,
    PEEK_ROWS,
    UNPACKED_FLOOR_BYTES,
    check_disk_space,
)
from dashboard.datasets.parsing.detection import detect, read_records
from dashboard.datasets.parsing.records import Record, num_chars_of
from dashboard.datasets.parsing.streams import Source
from dashboard.datasets.uploads import write_part
from dashboard.jobs.models import OPEN
from dashboard.jobs.slots import slot
from dashboard.project.errors import UserError
from dashboard.transfers.models import ImportFile, RunImport
from dashboard.transfers.tensorboard import is_event_file
from dashboard.web.overload import Busy

if TYPE_CHECKING:
    from _typeshed import SupportsRead

MAX_FILES = 10_000  # of an import: one a step
MOST_QUICK = 20  # files that a page reads
MAX_OPEN = 20  # imports of a team that were not made
KEPT = timedelta(days=7)
PIECE_BYTES = 2**20
# Errors of damaged archives, by compression method; OSErrors are handled below.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    UnicodeDecodeError,
    NotImplementedError,
)


def begin_import(team: Team, user: User) -> RunImport:
    """UserError if the team has too many unfinished imports."""
    purge_imports()
    open_ = RunImport.objects.filter(team=team, run=None).count()
    if open_ >= MAX_OPEN:
        raise UserError(
            "run_imports.too_many_open",
            f"{team} already has {open_} unfinished imports; the limit is "
            f"{MAX_OPEN}. Finish or discard one first.",
        )
    return RunImport.objects.create(team=team, created_by=user)


@transaction.atomic
def begin_file(
    run_import: RunImport, *, filename: str, num_bytes: int, fingerprint: str = ""
) -> ImportFile:
    """Return the file to send parts of; the unfinished one of the same name and
    beginning.
    """
    # Otherwise two concurrent requests could both be new, or both use the last space.
    Team.objects.select_for_update(no_key=True).get(pk=run_import.team_id)
    locked = RunImport.objects.filter(pk=run_import.pk, job=None)
    if not locked.exists():
        raise UserError(
            "run_imports.closed",
            "This import accepts no more files. Start a new import.",
        )
    filename = filename.replace("\x00", "")[-300:] or "file"
    existing = run_import.files.filter(filename=filename).first()
    if existing:
        if (existing.num_bytes, existing.fingerprint) == (num_bytes, fingerprint[:64]):
            return existing
        raise UserError(
            "run_imports.duplicate_file",
            f"{filename} is already in this import. Rename one of the two files.",
        )
    if num_bytes <= 0:
        raise UserError("run_imports.empty_file", f"{filename} is empty. Leave it out.")
    if num_bytes > MAX_UPLOAD_BYTES:
        raise UserError(
            "run_imports.file_too_large",
            f"{filename} has {num_bytes:,} bytes; the limit is "
            f"{MAX_UPLOAD_BYTES:,}. Import fewer steps.",
        )
    _check_share(run_import, num_bytes)
    check_storage(run_import.team, num_bytes, purpose=filename)
    check_disk_space(num_bytes, purpose=filename)
    return ImportFile.objects.create(
        run_import=run_import,
        filename=filename,
        stored_name=uuid.uuid4().hex,
        num_bytes=num_bytes,
        fingerprint=fingerprint[:64],
    )


def _check_share(run_import: RunImport, num_bytes: int) -> None:
    files = ImportFile.objects.filter(run_import__team=run_import.team_id)
    num_held = files.aggregate(held=Sum("num_bytes"))["held"] or 0
    if num_held + num_bytes > MAX_TEAM_BYTES:
        raise UserError(
            "run_imports.team_limit",
            "With this file, the team's unfinished imports would have "
            f"{num_held + num_bytes:,} bytes; the limit is {MAX_TEAM_BYTES:,}. Finish "
            "or discard one first.",
        )
    count = run_import.files.aggregate(count=Count("pk"))["count"]
    if count >= MAX_FILES:
        raise UserError(
            "run_imports.too_many_files",
            f"An import can have at most {MAX_FILES:,} files. Leave some out.",
        )


@transaction.atomic
def append_part(
    file: ImportFile, *, offset: int, part: SupportsRead[bytes], size: int
) -> None:
    """OffsetMismatch where the file ends elsewhere; ValueError for an unfit part."""
    ImportFile.objects.select_for_update().get(pk=file.pk)
    write_part(file.path, file.num_bytes, offset, part, size)


def store_file(run_import: RunImport, sent: UploadedFile[bytes]) -> None:
    """Store a file that came with the form."""
    file = begin_file(
        run_import, filename=sent.name or "file", num_bytes=sent.size or 0
    )
    file.path.parent.mkdir(parents=True, exist_ok=True)
    sent.seek(0)
    with file.path.open("wb") as target:
        shutil.copyfileobj(sent, target, PIECE_BYTES)


def unpack(run_import: RunImport) -> None:
    """Zip archives give way to the files in them; ValueError for an unfit one."""
    for file in list(run_import.files.order_by("pk")):
        # A Parquet file may hold a zip's end mark among its values.
        with file.path.open("rb") as opened:
            is_parquet = opened.read(4) == b"PAR1"
        if is_parquet or not zipfile.is_zipfile(file.path):
            continue
        with transaction.atomic():
            try:
                with zipfile.ZipFile(file.path) as archive:
                    _take_members(run_import, file, archive)
            except DAMAGED as error:
                raise _unfit(file, error) from None
            except OSError as error:
                # bzip2; a position before the file
                if error.errno in (None, errno.EINVAL):
                    raise _unfit(file, error) from None
                raise
            file.delete()
        file.path.unlink(missing_ok=True)


def is_quick(run_import: RunImport) -> bool:
    """Return whether a page may wait for the files to be read.

    The packed size does not bound the content, so the files are read up to the limit.
    """
    files = list(run_import.files.all()[: MOST_QUICK + 1])
    if len(files) > MOST_QUICK or sum(f.num_bytes for f in files) > AT_ONCE_BYTES:
        return False
    try:
        return all(_is_small(file) for file in files)
    except (Busy, FileNotFoundError):  # a worker reports the error
        return False


def _is_small(file: ImportFile) -> bool:
    if zipfile.is_zipfile(file.path):
        return False
    with file.path.open("rb") as opened:
        if is_event_file(opened):
            return True
    try:
        detected = detect(file.filename, file.path)
    except ValueError:
        return True  # which is reported at once
    source = Source(file.path, detected.format, detected.packing, most=AT_ONCE_BYTES)
    num_chars = 0
    reader_slot = slot() if detected.format == "parquet" else nullcontext()
    with reader_slot, closing(read_records(source)) as records:
        for num_rows, item in enumerate(records, 1):
            if isinstance(item, Record):
                num_chars += num_chars_of(item.values)
            if source.is_cut or num_rows > PEEK_ROWS or num_chars > AT_ONCE_BYTES:
                return False
    return True


def _unfit(file: ImportFile, error: Exception) -> ValueError:
    match error:
        case UnicodeDecodeError():
            why = "a filename in it is not UTF-8"
        case NotImplementedError():
            why = "its compression method is not supported"
        case EOFError():
            why = "it is truncated"
        case _:
            why = "it is damaged"
    return ValueError(
        f"Unpacking {file.filename} failed: {why}. Pack it again, or upload the "
        "files unpacked."
    )


def _take_members(
    run_import: RunImport, file: ImportFile, archive: zipfile.ZipFile
) -> None:
    members = [info for info in archive.infolist() if _is_wanted(info)]
    num_bytes = sum(info.file_size for info in members)
    limit = min(
        MAX_UPLOAD_BYTES, max(UNPACKED_FLOOR_BYTES, MAX_UNPACKED_RATIO * file.num_bytes)
    )
    if num_bytes > limit:
        raise ValueError(
            f"{file.filename} unpacks to {num_bytes:,} bytes; the limit is "
            f"{limit:,}. Pack fewer steps."
        )
    if run_import.files.count() + len(members) > MAX_FILES:
        raise ValueError(
            f"{file.filename} contains {len(members):,} files; an import can have "
            f"at most {MAX_FILES:,}. Leave some out."
        )
    check_disk_space(num_bytes, purpose=f"unpacking {file.filename}")
    for member in members:
        if member.flag_bits & 1:
            raise ValueError(
                f"{file.filename} is password-protected. Pack it again without a "
                "password."
            )
        unpacked = ImportFile(
            run_import=run_import,
            filename=f"{file.filename}/{member.filename}"[-300:],
            stored_name=uuid.uuid4().hex,
            num_bytes=member.file_size,
        )
        with archive.open(member) as source, unpacked.path.open("xb") as target:
            # At most as many bytes as the archive declares.
            missing = member.file_size
            while missing > 0 and (piece := source.read(min(PIECE_BYTES, missing))):
                target.write(piece)
                missing -= len(piece)
            if missing or source.read(1):
                raise zipfile.BadZipFile(
                    "the size of a file differs from the archive's index"
                )
        unpacked.save()


def _is_wanted(member: zipfile.ZipInfo) -> bool:
    """Skips hidden files that operating systems add."""
    parts = PurePosixPath(member.filename).parts
    is_hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
    return not member.is_dir() and member.file_size > 0 and not is_hidden


def discard(run_import: RunImport) -> None:
    """Delete it with its files; the run that was made of it stays."""
    shutil.rmtree(run_import.folder, ignore_errors=True)
    run_import.delete()


def remove_files(run_import: RunImport) -> None:
    shutil.rmtree(run_import.folder, ignore_errors=True)
    run_import.files.all().delete()


def purge_imports() -> None:
    old = RunImport.objects.filter(created_at__lt=timezone.now() - KEPT)
    for run_import in old.exclude(job__state__in=OPEN):
        discard(run_import)
