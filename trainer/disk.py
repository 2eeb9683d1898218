"""Free disk space for what a run saves, the error when it is missing, which checkpoints
of a folder are kept, and files of folders that anyone may have filled.

The dashboard uses it, so it imports no torch.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

MEBIBYTE = 2**20
# For the log, and for others who write to the same disk meanwhile. The variable names
# what a database there needs, which stops on a full disk.
RESERVED_BYTES = int(os.environ.get("COHORT_RESERVED_BYTES") or 64 * MEBIBYTE)
_CHECKPOINT = re.compile(r"step-(\d+)-(?:attempt|epoch)-(\d+)")
_MARGIN = 1.5  # of what was saved last: texts that were sampled ahead vary


class DiskFull(Exception):
    """The disk is full, or would be; the text is for the user."""

    def __init__(self, sentence: str, needs_bytes: int | None) -> None:
        super().__init__(sentence, needs_bytes)  # which any process can unpickle
        self.sentence = sentence
        # Bytes to free on the run's disk before resuming; None: another disk is full.
        self.needs_bytes = needs_bytes

    def __str__(self) -> str:
        return self.sentence


def bytes_needed(num_bytes: int) -> int:
    """Return how much must be free to save so much."""
    return int(_MARGIN * num_bytes) + RESERVED_BYTES


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_disk_space(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """
    Raises:
        DiskFull: fewer bytes than `purpose` needs are free on a folder's disk.
    """
    if free_bytes(folder) < num_bytes:
        raise disk_too_small(folder, num_bytes, purpose=purpose)


def disk_too_small(folder: Path, num_bytes: int, *, purpose: str) -> DiskFull:
    return DiskFull(
        f"The disk of {folder} has {_shown(free_bytes(folder))} free; {purpose} needs "
        f"{_shown(num_bytes)}.",
        num_bytes,
    )


def full_disk(
    folder: Path, num_bytes: int, *, purpose: str, error: BaseException
) -> DiskFull:
    """Return the error of a failed write, also if another disk than this folder's is
    full.
    """
    free = free_bytes(folder)
    if free < num_bytes:
        return disk_too_small(folder, num_bytes, purpose=purpose)
    met = str(error).partition("\n")[0].rstrip(".")
    return DiskFull(
        f"No space for {purpose}, although the disk of {folder} has {_shown(free)} "
        f"free: {met}. A quota, or another disk such as the one for temporary files, "
        "is full.",
        None,
    )


@contextmanager
def raise_disk_full(folder: Path, num_bytes: int, *, purpose: str) -> Iterator[None]:
    """Turn the errors of a full disk into DiskFull."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise full_disk(folder, num_bytes, purpose=purpose, error=error) from error


@contextmanager
def ignore_full_disk() -> Iterator[None]:
    """Drop output when its disk is full."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def is_disk_full(error: BaseException) -> bool:
    # safetensors has it only in the text of its own error
    texts = ("No space left on device", "Disk quota exceeded")
    is_in_text = any(text in str(error) for text in texts)
    return is_in_text or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def prune_checkpoints(
    folder: Path,
    *,
    keep_last: int,
    step: int,
    attempt: int,
    attempts: Path | None = None,
) -> None:
    """Delete all but the last `keep_last` checkpoints up to this step and attempt.

    An attempt that was given up as lost may still save here. It must not delete the
    checkpoints of its successor, so newer attempts and later steps are kept; nor the
    checkpoint that its successor resumed from, so nothing is deleted once `attempts`,
    the folder of all attempts, has a newer one. Unfinished folders of killed saves are
    deleted as well.
    """
    if attempts is not None and newest_attempt(attempts) > attempt:
        return
    own = [
        path
        for path in list_checkpoints(folder)
        if place_of(path) <= (step, attempt) and place_of(path)[1] <= attempt
    ]
    for path in own[:-keep_last]:
        _remove(path)
    for path in folder.glob(".step-*.unfinished"):
        if place_of(path)[1] <= attempt:
            _remove(path)


def newest_attempt(attempts: Path) -> int:
    """Made as its supervisor claims the run, before it looks for a checkpoint."""
    # A folder that is not there: none.
    named = (path.name for path in attempts.glob("*"))
    return max((int(name) for name in named if name.isdecimal()), default=0)


def list_checkpoints(folder: Path) -> list[Path]:
    """List from nearest to furthest; of equal steps the older attempt's first."""
    named = [path for path in folder.glob("step-*") if _CHECKPOINT.fullmatch(path.name)]
    return sorted(named, key=place_of)


def place_of(path: Path) -> tuple[int, int]:
    """Return the step and the attempt that a checkpoint's folder is named for."""
    match = _CHECKPOINT.search(path.name)
    assert match is not None, path
    return int(match[1]), int(match[2])


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def free_bytes(folder: Path) -> int:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / MEBIBYTE:,.0f} MiB"


# Folders that anyone may have filled: links lead to no other folder.


def resolve_inside(folder: Path, name: str) -> Path:
    """Return the real path of a file, which may not exist.

    A folder `snapshots/<commit>` of a hub's cache has links to `blobs` beside it.

    Raises:
        ValueError: it lies outside the folder's real path, or in /proc.
    """
    try:
        root, place = folder.resolve(), (folder / name).resolve()
    except (OSError, RuntimeError, ValueError):  # too long; a loop of links; a NUL
        raise ValueError(f"{folder.name} has an invalid file name: {name!r}.") from None
    is_cached = root.parent.name == "snapshots" and (
        place.is_relative_to(root.parent.parent / "blobs")
    )
    is_inside = is_cached or place.is_relative_to(root)
    # What is in /proc is a regular file to the kernel.
    if not is_inside or place.is_relative_to("/proc"):
        raise ValueError(
            f"{name!r} in {folder} leads outside the folder. Copy the file into it."
        )
    return place


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Open a regular file of the folder.

    Raises:
        ValueError: it is none, or lies elsewhere.
        OSError: it cannot be opened.
    """
    # Opening a pipe, or some files of /proc, would block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(resolve_inside(folder, name), flags), "rb")
    status = os.fstat(file.fileno())
    try:
        # A folder on the way may have become a link meanwhile.
        is_same = os.path.samestat(status, resolve_inside(folder, name).stat())
    except (OSError, ValueError):
        is_same = False
    if not (is_same and stat.S_ISREG(status.st_mode)):
        file.close()
        raise ValueError(f"{name!r} in {folder} is not a regular file.")
    return file
