"""Resumable uploads in parts.

The size of the file on disk is the number of bytes received, so a server that stops
during a part loses only what it had not written.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Count, Sum
from django.http import Http404

from dashboard.accounts.members import check_storage
from dashboard.accounts.models import Team, User
from dashboard.datasets.limits import (
    MAX_TEAM_BYTES,
    MAX_TEAM_UPLOADS,
    MAX_UPLOAD_BYTES,
    PART_BYTES,
    check_disk_space,
)
from dashboard.datasets.models import Dataset, Upload
from dashboard.project.errors import UserError

if TYPE_CHECKING:
    from _typeshed import SupportsRead

PIECE_BYTES = 2**20


class OffsetMismatch(Exception):
    """The part does not begin where the file ends, or another is being written."""


def begin_transfer(
    *,
    team: Team,
    user: User,
    filename: str,
    num_bytes: int,
    fingerprint: str,
    dataset: Dataset | None,
) -> Upload:
    """Return the upload to send parts to: new, or the user's unfinished one of this
    file.

    UserError if the file is too large or does not fit.
    """
    filename = filename.replace("\x00", "")[-200:] or "file"
    fingerprint = fingerprint.replace("\x00", "")[:64]
    with transaction.atomic():
        # Two requests could otherwise both create one, or both take the last space.
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)
        unfinished = team.uploads.filter(
            created_by=user,
            filename=filename,
            num_bytes=num_bytes,
            fingerprint=fingerprint,
            dataset=dataset,
            is_whole=False,
        ).first()
        if unfinished:
            return unfinished
        check_size(filename, num_bytes)
        check_share(team, num_bytes)
        check_disk_space(num_bytes, purpose=filename)
        return Upload.objects.create(
            team=team,
            dataset=dataset,
            filename=filename,
            stored_name=uuid.uuid4().hex,
            num_bytes=num_bytes,
            fingerprint=fingerprint,
            is_whole=False,
            created_by=user,
        )


def check_size(filename: str, num_bytes: int) -> None:
    if num_bytes <= 0:
        raise UserError(
            "datasets.file_empty", f"{filename} is empty. Choose a file with rows."
        )
    if num_bytes > MAX_UPLOAD_BYTES:
        raise UserError(
            "datasets.file_too_large",
            f"{filename} has {num_bytes:,} bytes; the limit is {MAX_UPLOAD_BYTES:,}. "
            "Split it into several datasets.",
        )


def check_share(team: Team, num_bytes: int) -> None:
    """UserError if the team has too many unfinished uploads."""
    check_storage(team, num_bytes, purpose="the file")
    waiting = team.uploads.aggregate(count=Count("pk"), held=Sum("num_bytes"))
    num_held = waiting["held"] or 0
    if waiting["count"] >= MAX_TEAM_UPLOADS or num_held + num_bytes > MAX_TEAM_BYTES:
        raise UserError(
            "datasets.too_many_uploads",
            f"{team} has {waiting['count']:,} unfinished uploads of {num_held:,} "
            f"bytes; the limit is {MAX_TEAM_UPLOADS} uploads and {MAX_TEAM_BYTES:,} "
            "bytes. Import or discard some of them first.",
        )


@transaction.atomic
def append_part(
    *,
    team: Team,
    user: User,
    upload_id: int,
    offset: int,
    part: SupportsRead[bytes],
    size: int,
) -> Upload:
    """Write `size` bytes of the file from `offset` on.

    OffsetMismatch if the file ends elsewhere; UserError for an invalid part.
    """
    # The row's lock keeps parts of one upload from being written at the same time.
    own = Upload.objects.filter(source={}).select_for_update(
        skip_locked=True, of=("self",)
    )
    upload = own.filter(team=team, created_by=user, pk=upload_id).first()
    if upload is None:
        if not team.uploads.filter(created_by=user, pk=upload_id, source={}).exists():
            raise Http404("No such upload.")
        raise OffsetMismatch
    if upload.is_whole:
        raise OffsetMismatch
    write_part(upload.path, upload.num_bytes, offset, part, size)
    return upload


def write_part(
    path: Path, num_bytes: int, offset: int, part: SupportsRead[bytes], size: int
) -> None:
    """Append `size` bytes to a file of `num_bytes` in the end; its row is locked.

    OffsetMismatch if the file ends elsewhere; UserError if the part does not fit. A
    part that cannot be written leaves the file unchanged.
    """
    if offset != (path.stat().st_size if path.exists() else 0):
        raise OffsetMismatch
    if not 0 < size <= PART_BYTES or offset + size > num_bytes:
        raise UserError(
            "datasets.invalid_part",
            f"A part must have 1 to {PART_BYTES:,} bytes, and {num_bytes - offset:,} "
            f"bytes of this file are missing; got {size:,}.",
        )
    check_disk_space(size, purpose="the next part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        try:
            while size > 0 and (piece := part.read(min(PIECE_BYTES, size))):
                if file.write(piece) < len(piece):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                size -= len(piece)
        except OSError:
            file.truncate(offset)
            raise
