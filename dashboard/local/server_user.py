"""The user that PostgreSQL runs as. It refuses to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from dashboard.local.faults import LocalFault

NAME = "cohort-postgres"


def server_user() -> pwd.struct_passwd | None:
    """None: ours will do. As root: a user for the server alone, made when missing."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(NAME)
    except KeyError:
        _make_user()
        return pwd.getpwnam(NAME)


def _make_user() -> None:
    useradd = shutil.which("useradd", path=f"{os.defpath}:/usr/sbin:/sbin")
    if useradd is None:
        raise LocalFault(
            "PostgreSQL does not run as root, and there is no `useradd` to make a user "
            "for it. Start Cohort as an ordinary user, or set DATABASE_URL."
        )
    options = ["--system", "--no-create-home", "--shell", "/usr/sbin/nologin"]
    subprocess.run([useradd, *options, NAME], check=True, capture_output=True)


def let_traverse(path: Path) -> None:
    """As root: let the server's user pass through (not list) the folders above."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
