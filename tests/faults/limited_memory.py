"""A control group whose processes get no memory any more."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
V1, V2 = CGROUPS / "memory", CGROUPS
ROOM_BYTES = 64 * 1024
NEEDED = (
    "Needs root and a control group with a memory limit beneath /sys/fs/cgroup, so "
    "that the kernel's own OOM killer strikes."
)


@contextmanager
def group_without_memory() -> Iterator[Path]:
    """Its cgroup.procs; whoever moves in is ended at its next page."""
    is_v1 = V1.is_dir()
    folder = (V1 if is_v1 else V2) / f"cohort-fault-{secrets.token_hex(4)}"
    limit = folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")
    try:
        folder.mkdir()
        if not is_v1:
            (V2 / "cgroup.subtree_control").write_text("+memory")
        limit.write_text(str(ROOM_BYTES))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"{NEEDED} Here: {error}.")
    try:
        yield folder / "cgroup.procs"
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Its last process may still be on its way out."""
    deadline = time.monotonic() + 10
    while True:
        try:
            os.rmdir(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
