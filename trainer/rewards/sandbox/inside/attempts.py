"""The call "attempts": does what a sandbox must not let happen, and tells what did."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

from trainer.rewards.sandbox.inside.talking import hear, reply


def perform() -> None:
    """Replies with the names of what was not refused."""
    paths = hear()["paths"]
    tries: dict[str, Callable[[], object]] = {
        "start a process": os.fork,
        "run a program": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "run a command": lambda: subprocess.run(["/bin/true"], check=True),
        "open a connection": lambda: socket.socket(socket.AF_INET),
        "send a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX),
        "signal its parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
        "signal everyone": lambda: os.kill(-1, signal.SIGCONT),
        "read another's clock": lambda: time.clock_gettime((~1 << 3) | 2),
        "read another's cores": lambda: os.sched_getaffinity(1),
        "leave its session": os.setsid,
        "write a file": lambda: open("/tmp/cohort-attempt", "w"),  # nosec B108 # noqa: SIM115, S108
        "list the root": lambda: os.listdir("/"),
        "list processes": lambda: os.listdir("/proc"),
        "read its environment": lambda: open("/proc/self/environ"),  # noqa: SIM115
        "become root": lambda: os.setuid(0),
        "raise its limits": lambda: _raise_limit(),
    }
    for path in paths:
        tries[f"read {path}"] = _opener(path)
    reply([name for name, attempt in tries.items() if _happens(attempt)])


def _raise_limit() -> None:
    import resource  # noqa: PLC0415 - it is loaded; this names it

    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))


def _opener(path: str) -> Callable[[], object]:
    return lambda: open(path)


def _happens(attempt: Callable[[], object]) -> bool:
    try:
        result = attempt()
    except (OSError, ValueError):
        return False
    if result == 0 and attempt is os.fork:
        os._exit(0)  # the child of a fork that was allowed
    return True
