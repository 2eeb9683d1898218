"""Is there room to start: a free port, space on the disk, a writable folder."""

from __future__ import annotations

import errno
import shutil
import socket
import tempfile
from contextlib import closing
from pathlib import Path

from dashboard.local.faults import LocalFault, fault_of
from dashboard.local.folders import private_folder

LEAST_FREE_BYTES = 1024**3  # database, starter model, first checkpoints


def check_folder(data: Path) -> None:
    private_folder(data)
    try:
        with tempfile.TemporaryFile(dir=data):
            pass
    except OSError as error:
        raise fault_of(error, data) from error
    free = shutil.disk_usage(data).free
    if free < LEAST_FREE_BYTES:
        raise LocalFault(
            f"The disk that holds {data} has {free / 1024**2:.0f} MiB left; Cohort "
            f"needs {LEAST_FREE_BYTES / 1024**2:.0f} MiB to start. Free some space, or "
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
            f"Port {port} cannot be opened ({error.strerror}). Choose a port above "
            "1023: COHORT_PORT=8000 make run"
        ) from error


def _bind(port: int) -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # As uvicorn does: a port whose last connections only linger is free.
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
