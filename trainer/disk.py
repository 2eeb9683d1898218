"""Is there room on the disk for what a run saves; and what is said where not."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEBIBYTE = 2**20
# For the log, and for others who write to the same disk meanwhile.
RESERVED_BYTES = 64 * MEBIBYTE
_MARGIN = 1.5  # of what was saved last: texts that were sampled ahead vary


class DiskFull(Exception):
    """The disk is full, or would be; the text is for the user."""

    def __init__(self, sentence: str, needs_bytes: int | None) -> None:
        super().__init__(sentence, needs_bytes)  # which any process can unpickle
        self.sentence = sentence
        # Free on the run's disk, before going on makes sense; None: only a person
        # knows what is full.
        self.needs_bytes = needs_bytes

    def __str__(self) -> str:
        return self.sentence


def bytes_needed(num_bytes: int) -> int:
    """How much must be free to save so much."""
    return int(_MARGIN * num_bytes) + RESERVED_BYTES


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_room(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """
    Raises:
        DiskFull: fewer bytes than `purpose` needs are free on a folder's disk.
    """
    if _free(folder) < num_bytes:
        raise no_room(folder, num_bytes, purpose=purpose)


def no_room(folder: Path, num_bytes: int, *, purpose: str) -> DiskFull:
    return DiskFull(
        f"The disk of {folder} has {_shown(_free(folder))} free; {purpose} needs "
        f"{_shown(num_bytes)}.",
        num_bytes,
    )


def full_disk(
    folder: Path, num_bytes: int, *, purpose: str, error: BaseException
) -> DiskFull:
    """What a write has met, whether or not it is the disk of this folder."""
    free = _free(folder)
    if free < num_bytes:
        return no_room(folder, num_bytes, purpose=purpose)
    met = str(error).partition("\n")[0].rstrip(".")
    return DiskFull(
        f"No space for {purpose}, although the disk of {folder} has {_shown(free)} "
        f"free: {met}. A quota, or another disk such as the one for temporary files, "
        "is full.",
        None,
    )


@contextmanager
def telling_of_a_full_disk(
    folder: Path, num_bytes: int, *, purpose: str
) -> Iterator[None]:
    """What a full disk raises inside becomes DiskFull."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise full_disk(folder, num_bytes, purpose=purpose, error=error) from error


@contextmanager
def unsaid_where_full() -> Iterator[None]:
    """What is only said is dropped where the disk of the output is full."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def is_disk_full(error: BaseException) -> bool:
    # safetensors tells it in the text of an error of its own
    texts = ("No space left on device", "Disk quota exceeded")
    says_so = any(text in str(error) for text in texts)
    return says_so or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def _free(folder: Path) -> int:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / MEBIBYTE:,.0f} MiB"
