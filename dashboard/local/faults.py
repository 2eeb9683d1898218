"""Faults of one-machine mode, each told in a sentence with its remedy."""

from __future__ import annotations

import errno
from pathlib import Path


class LocalFault(Exception):
    """Something about this machine that its user can put right."""


def fault_of(error: OSError, path: Path) -> LocalFault:
    """What an OSError about this path means to the person at the terminal."""
    if error.errno == errno.ENOSPC:
        return LocalFault(
            f"The disk that holds {path} is full. Free some space, or set "
            "COHORT_DATA to a folder on another disk, and start again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LocalFault(
            f"Cohort may not write in {path} ({error.strerror}). Give your user "
            "write access, or set COHORT_DATA to a folder you own."
        )
    return LocalFault(f"{path}: {error.strerror or error}.")
