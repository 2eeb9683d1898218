"""The data folder: its private folders, its servers' sockets, and its errors.

The embedded servers listen only on a unix socket. All paths follow from the data
folder, so every process that knows COHORT_DATA finds them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

# sun_path has 108 bytes with its NUL, and PostgreSQL adds "/.s.PGSQL.5432.lock".
LONGEST_FOLDER = 80
# Deleting it brings PostgreSQL back from a full disk.
RESERVE_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    postgres_folder: Path
    redis_socket: Path

    @property
    def database_url(self) -> str:
        return f"postgresql://cohort@/cohort?host={self.postgres_folder}"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.redis_socket}"


def embedded_addresses(data: Path) -> Addresses:
    folder = data / "sockets"
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
        folder = Path("/tmp") / f"cohort-{os.getuid()}-{digest}"  # nosec B108 # noqa: S108 - socket paths must be short; private_folder() refuses another's
    return Addresses(
        postgres_folder=folder / "postgres",
        redis_socket=folder / "redis" / "redis.sock",
    )


class LocalFault(Exception):
    """Something about this machine that its user can put right."""


def fault_of(error: OSError, path: Path) -> LocalFault:
    """Explain an OSError about this path to the person at the terminal."""
    if error.errno == errno.ENOSPC:
        return LocalFault(
            f"The disk with {path} is full. Free some space, or set COHORT_DATA to "
            "a folder on another disk, then start again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LocalFault(
            f"Cohort cannot write to {path} ({error.strerror}). Give your user "
            "write access, or set COHORT_DATA to a folder you own."
        )
    return LocalFault(f"{path}: {error.strerror or error}.")


def private_folder(path: Path, *, owner: int | None = None) -> Path:
    """Make the folder, mode 0700; refuse one that another user put there first."""
    owner = os.getuid() if owner is None else owner
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (
            os.getuid(),
            owner,
        ):
            raise LocalFault(
                f"{path} belongs to another user (id {status.st_uid}), so Cohort "
                "does not create sockets there. Remove it, or set COHORT_DATA to "
                "another folder."
            )
        path.chmod(0o700)
        if status.st_uid != owner:
            os.chown(path, owner, -1)
    except OSError as error:
        raise fault_of(error, path) from error
    return path


def close_folder(data: Path) -> None:
    """Take from others what earlier releases or a copied backup let them read."""
    for path in data.iterdir():
        try:
            status = path.lstat()
            if (
                status.st_uid == os.getuid()
                and status.st_mode & 0o077
                and not stat.S_ISLNK(status.st_mode)
            ):
                path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise fault_of(error, path) from error


def keep_reserve(data: Path) -> None:
    """Write the file `reserve`, unless it is there or takes over 1 % of what is free.

    An operator deletes it on a full disk.
    """
    path = data / "reserve"
    if not path.exists() and shutil.disk_usage(data).free >= 100 * RESERVE_BYTES:
        with path.open("xb") as file:
            file.writelines(bytes(2**20) for _ in range(RESERVE_BYTES // 2**20))


def tail(path: Path, *, num_lines: int = 6) -> str:
    """Return the last lines of a log, for a message."""
    if not path.exists():
        return "(no log)"
    lines = path.read_text(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])
