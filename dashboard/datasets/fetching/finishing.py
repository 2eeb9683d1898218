"""Finishes a download: joins its files, checks hashes, and sees that it can be read."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.utils import timezone

from dashboard.datasets.fetching.download import Report
from dashboard.datasets.fetching.http import NotFetched
from dashboard.datasets.fetching.hub import HubFile
from dashboard.datasets.imports import peek, recognise, remove_files
from dashboard.datasets.limits import MAX_UNPACKED_BYTES
from dashboard.datasets.models import Upload
from dashboard.datasets.parsing.parquet import PROCESS
from dashboard.project.subprocesses import ChildFailed, call

BUFFER_BYTES = 2**20


def finish_upload(
    upload: Upload, parts: list[Path], lineage: dict[str, Any], report: Report
) -> None:
    """Mark the upload as whole; delete files that are of no use. ValueError.

    Its errors must not quote the content, which may be confidential.
    """
    num_bytes = sum(part.stat().st_size for part in parts)

    def on_wait() -> None:
        report(num_bytes, num_bytes, "Downloaded. Checking the file.")

    try:
        on_wait()
        _join(parts, upload.path, on_wait=on_wait)
        with upload.path.open("rb") as file:
            start = file.read(1_024)
        if not start:
            raise NotFetched("The file is empty. Enter the URL of a file with rows.")
        if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
            raise NotFetched(
                "The server sent a web page or an XML document instead of a file. "
                "Enter the direct URL of the file."
            )
        recognise(upload)
        seen = peek(upload, in_job=True)
        if not seen.records:
            refusal = seen.refusals.groups[0].first[0]
            raise NotFetched(
                f"The file was read as {upload.kind}, but none of its first "
                f"{seen.refusals.count:,} rows is valid. {refusal.place.capitalize()}: "
                f"{refusal.problem} Enter the URL of another file."
            )
    except ValueError:
        remove_files(upload)
        raise
    upload.num_bytes = upload.path.stat().st_size
    upload.is_whole = True
    upload.source = {
        **lineage,
        "fetched_at": timezone.now().isoformat(timespec="seconds"),
        "sha256": _digest(upload.path, hashlib.sha256(), on_wait),
    }
    # Update only: the upload may have been deleted with its dataset.
    names = ("format", "packing", "remark", "num_bytes", "is_whole", "source")
    fields = {name: getattr(upload, name) for name in names}
    if not Upload.objects.filter(pk=upload.pk).update(**fields):
        raise NotFetched(
            "The dataset for this download was deleted. Download the file again for "
            "another dataset."
        )


def check_content(part: Path, file: HubFile, on_wait: Callable[[], None]) -> None:
    """ValueError where the bytes are not those that the hub lists."""
    if file.sha256:
        actual, expected = _digest(part, hashlib.sha256(), on_wait), file.sha256
    elif file.blob:
        head = b"blob %d\x00" % part.stat().st_size
        actual = _digest(part, hashlib.sha1(head, usedforsecurity=False), on_wait)
        expected = file.blob
    else:
        return
    if actual != expected:
        part.unlink()
        raise NotFetched(
            f"Checksum mismatch for {file.path}: the file has {actual[:12]}…, but the "
            f"Hub lists {expected[:12]}…. Try again."
        )


def _join(parts: list[Path], whole: Path, *, on_wait: Callable[[], None]) -> None:
    """Join the parts, then delete them. Raises NotFetched."""
    if len(parts) == 1:
        parts[0].replace(whole)
        return
    draft = whole.with_name(f"{whole.name}.joined")
    try:
        with parts[0].open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        (_join_parquet if is_parquet else _join_lines)(parts, draft, on_wait)
        draft.replace(whole)
    finally:
        draft.unlink(missing_ok=True)
    for part in parts:
        part.unlink(missing_ok=True)


def _join_lines(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    with draft.open("wb") as joined:
        for part in parts:
            on_wait()
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, BUFFER_BYTES)
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        joined.write(b"\n")


def _join_parquet(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    try:
        for problem in call(PROCESS, "join", parts, draft, MAX_UNPACKED_BYTES):
            if problem:
                raise NotFetched(problem)
            on_wait()
    except ChildFailed as error:
        raise NotFetched(
            f"Cannot join the files of this split into one Parquet file: {error}. "
            "Import its files one at a time."
        ) from None


def _digest(path: Path, digest: Any, on_wait: Callable[[], None]) -> str:
    with path.open("rb") as file:
        while data := file.read(BUFFER_BYTES):
            on_wait()
            digest.update(data)
    return str(digest.hexdigest())
