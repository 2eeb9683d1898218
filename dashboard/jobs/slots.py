"""Slots of this machine for child processes that people wait for.

A child uses a core and some hundred megabytes, so only a few run at a time, for any
number of web processes, and at most half of them for one team. A slot is a lock on a
file, which the kernel releases when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dashboard.observability.logging import current_facts
from dashboard.project.database import release_connection
from dashboard.web.overload import Busy

NUM_SLOTS = max(2, os.cpu_count() or 2)
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.05


@contextmanager
def slot(*, wait_seconds: float | None = None) -> Iterator[None]:
    """Hold a slot while a child runs for this request.

    Returns the database connection meanwhile, except within a transaction.

    Raises Busy if no slot is free within `wait_seconds`, or 5 s.
    """
    wait_seconds = WAIT_SECONDS if wait_seconds is None else wait_seconds
    release_connection()
    facts = current_facts()
    team = facts.get("team")
    owner = f"team-{team}" if team else f"user-{facts.get('user', 'nobody')}"
    deadline = time.monotonic() + wait_seconds
    while (lock := _take(owner)) is None:
        if time.monotonic() >= deadline:
            raise Busy(wait_seconds)
        time.sleep(POLL_SECONDS)
    with lock:
        yield


def _take(owner: str) -> ExitStack | None:
    with ExitStack() as locks:
        for name, number in ((owner, max(1, NUM_SLOTS // 2)), ("machine", NUM_SLOTS)):
            if not any(_lock(locks, f"{name}-{index}") for index in range(number)):
                return None
        return locks.pop_all()


def _lock(locks: ExitStack, name: str) -> bool:
    file = os.open(_folder() / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locks.callback(os.close, file)
        return True
    os.close(file)
    return False


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"cohort-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user. Remove it.")
    return folder
