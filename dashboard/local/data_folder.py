"""The data folder: its lock, private folders and servers' sockets, and what must be
free on this machine before a start.

The embedded servers listen only on a unix socket. All paths follow from the data
folder, so every process that knows COHORT_DATA finds them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
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


LEAST_FREE_BYTES = 1024**3  # database, starter model, first checkpoints
LEAST_AGAIN_BYTES = 128 * 1024**2  # for a database that is there


def check_folder(data: Path) -> None:
    private_folder(data)
    try:
        with tempfile.TemporaryFile(dir=data):
            pass
    except OSError as error:
        raise fault_of(error, data) from error
    free = shutil.disk_usage(data).free
    least = LEAST_AGAIN_BYTES if (data / "postgres").exists() else LEAST_FREE_BYTES
    if free < least:
        raise LocalFault(
            f"The disk with {data} has {free / 1024**2:.0f} MiB free; Cohort "
            f"needs {least / 1024**2:.0f} MiB to start. Free some space, or "
            "set COHORT_DATA to a folder on another disk."
        )


def check_port(port: int) -> None:
    try:
        _bind(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LocalFault(
                f"Port {port} is in use by another program. Stop that program, or "
                f"choose another port: COHORT_PORT={_free_port(port)} make run"
            ) from error
        raise LocalFault(
            f"Cohort cannot listen on port {port} ({error.strerror}). Choose a "
            "port above 1023: COHORT_PORT=8000 make run"
        ) from error


def _bind(port: int) -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # As uvicorn does: a port with only lingering connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def _free_port(taken: int) -> int:
    for port in range(taken + 1, min(taken + 100, 65_536)):
        try:
            _bind(port)
        except OSError:
            continue
        return port
    return 8000


@contextmanager
def hold_folder(data: Path, *, address: str) -> Iterator[None]:
    """Lock the data folder until the end; fail if another process has it.

    The kernel releases the lock when the process ends in any way.
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
                f"Cohort is already running with {data} ({holder}). Use it, stop "
                "it, or set COHORT_DATA to another folder."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, {address}")
        file.flush()
        yield
