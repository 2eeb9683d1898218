"""Files of a folder that anyone may have filled: links lead to no other folder.

The dashboard uses it, so it imports no torch.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


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
