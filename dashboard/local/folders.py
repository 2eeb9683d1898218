"""Folders that only their owner may enter."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dashboard.local.faults import LocalFault, fault_of


def private_folder(path: Path, *, owner: int | None = None) -> Path:
    """Make the folder, mode 0700; refuse one that another user put there first."""
    owner = os.getuid() if owner is None else owner
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.getuid(), owner):
            raise LocalFault(
                f"{path} belongs to another user (id {found.st_uid}), so Cohort will "
                "not put its sockets there. Remove it, or set COHORT_DATA elsewhere."
            )
        path.chmod(0o700)
        if found.st_uid != owner:
            os.chown(path, owner, -1)
    except OSError as error:
        raise fault_of(error, path) from error
    return path


def tail(path: Path, *, num_lines: int = 6) -> str:
    """The last lines of a log, for a message."""
    if not path.exists():
        return "(no log)"
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])
