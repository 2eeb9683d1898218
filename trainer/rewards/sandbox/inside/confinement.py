"""What the child of one call takes away from itself before it runs anything of ours."""

from __future__ import annotations

import ctypes  # noqa: F401 - loaded before the files are out of reach
import os
import resource
import signal
from collections.abc import Mapping
from typing import NamedTuple

from trainer.rewards.sandbox.inside import kernel, seccomp

MAX_THREADS = 16
MAX_DESCRIPTORS = 64
MAX_FILE_BYTES = 8 * 1024**2
QUESTIONS, REPLIES = 3, 4  # the child's descriptors beside the usual three
# Of another user's processes that begin while a call runs, where the uid is not ours.
_HEADROOM = 64
_FOR_ALL = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
}
# What the machine allows of each, asked once: a call would spend a tenth of it on that.
_HARD = dict.fromkeys(
    (*_FOR_ALL, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC), 0
)


class Walls(NamedTuple):
    """Landlock's rules, as a descriptor, and seccomp's program."""

    files: int | None
    calls: bytes


def confine(
    limits: Mapping[str, int], walls: Walls, *, parent: int, num_others: int
) -> None:
    """Limits, then files, then system calls; OSError when one cannot be set."""
    kernel.end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before that was set
    _limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    # The first signal may be ignored, the second one a second later may not.
    seconds = limits["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    _limit(resource.RLIMIT_NPROC, MAX_THREADS + 2 + num_others)
    if walls.files is not None:
        kernel.landlock_apply(walls.files)
        os.close(walls.files)
    kernel.filter_calls(seccomp.own_filter(walls.calls, pid=os.getpid()))


def confine_zygote() -> None:
    """Those of the limits that it can have as well as each of its children."""
    for kind in _HARD:
        _HARD[kind] = resource.getrlimit(kind)[1]
    for kind, value in _FOR_ALL.items():
        _limit(kind, value)


def _limit(kind: int, value: int) -> None:
    """Never more than the machine allows already."""
    hard = _HARD[kind]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def count_others(uid: int) -> int:
    """Threads of a user's processes, and room for those that begin meanwhile."""
    count = _HEADROOM
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += os.stat(f"/proc/{name}/task").st_nlink - 2
            except OSError:
                continue  # it has ended
    return count
