"""One `up` per data folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dashboard.local.faults import LocalFault, fault_of


@contextmanager
def hold_folder(data: Path, *, address: str) -> Iterator[None]:
    """Hold the data folder until the end; refuse when another process holds it.

    The kernel drops the lock when its holder dies, however it dies.
    """
    path = data / "up.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise fault_of(error, path) from error
    with os.fdopen(handle, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "unknown process"
            raise LocalFault(
                f"Cohort already runs on {data} ({holder}). Use that one, stop it "
                "first, or set COHORT_DATA to another folder."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, {address}")
        file.flush()
        yield
