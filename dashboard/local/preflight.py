"""Checks before the start: a free port, disk space, a folder that no `up` uses."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dashboard.local.data_folder import LocalFault, fault_of, private_folder

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
