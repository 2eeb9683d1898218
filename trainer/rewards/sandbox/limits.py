"""Limits of a sandbox: resource limits of a call, a cgroup, a user id.

A cgroup limits what single processes cannot: the memory of a whole sandbox, including
the kernel's, and its number of processes and threads. It needs cgroup v2 and a
delegated group, from systemd's Delegate= or a container. Without one, the other limits
apply.

The kernel counts processes per user and lets processes of one user inspect one another,
so sandboxes started by root must not share a user id. An id is reserved by an abstract
name that the kernel gives to one process at a time and frees when that process ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer.rewards.sandbox.inside.confinement import MAX_THREADS

MEBIBYTE = 1024**2
MAX_WALL_SECONDS = 60.0
MAX_CALL_SECONDS = 600.0  # of one that judges a group
MAX_MEMORY_MB = 1_024
OUTPUT_BYTES = 64 * 1024
# Of one call's replies together: values that are compared, not texts that are read.
REPLY_BYTES = MEBIBYTE


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one call: seconds by the clock, of a processor, and MiB of address
    space.

    Besides: 16 threads, 64 descriptors, files of 1 MiB in its memory, no other process.
    """

    wall_seconds: float = 5.0
    memory_mb: int = 512
    output_bytes: int = OUTPUT_BYTES  # kept of each of its two outputs

    def __post_init__(self) -> None:
        assert 0 < self.wall_seconds <= MAX_CALL_SECONDS
        assert 64 <= self.memory_mb <= MAX_MEMORY_MB

    def as_header(self) -> dict[str, Any]:
        return {
            "wall_seconds": self.wall_seconds,
            "max_output_bytes": self.output_bytes,
            "max_reply_bytes": REPLY_BYTES,
            "limits": {
                "memory_bytes": self.memory_mb * MEBIBYTE,
                "cpu_seconds": math.ceil(self.wall_seconds),
            },
        }


# Control groups

_CONTROLLERS = ("memory", "pids")
# A call's process, the one that it was forked from, and bubblewrap.
_LIMITS = {
    "memory.max": (MAX_MEMORY_MB + 192) * MEBIBYTE,
    "memory.swap.max": 0,
    "pids.max": MAX_THREADS + 16,
}
_OPTIONAL = {"memory.swap.max"}  # of a kernel that counts swap
_PREFIX = "cohort-sandbox"
_REMOVE_SECONDS = 2.0


class NoGroup(Exception):
    """A group cannot be made here; the text is a predicate."""


class Group:
    """A group of one sandbox, empty until its launcher moves itself in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def cgroup_path(self) -> str:
        """The file that a process writes 0 to when it moves in."""
        return str(self.folder / "cgroup.procs")

    def is_lived_in(self) -> bool:
        return _is_populated(self.folder)

    def remove(self) -> None:
        """End whatever is left in it; its end is waited for, for a while."""
        with contextlib.suppress(OSError):  # Linux before 5.14
            (self.folder / "cgroup.kill").write_text("1", encoding="ascii")
        deadline = time.monotonic() + _REMOVE_SECONDS
        while not _removed(self.folder) and time.monotonic() < deadline:
            time.sleep(0.01)


def make_group() -> Group:
    """
    Raises:
        NoGroup: the machine has none for us.
    """
    parent = parent_here()
    # Remove groups whose process was killed before it could.
    for folder in _ours_in(parent):
        pid = folder.name.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if not Path(f"/proc/{pid}").exists() and not _is_populated(folder):
            _removed(folder)
    folder = parent / f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        for name, value in _LIMITS.items():
            if name not in _OPTIONAL or (folder / name).exists():
                (folder / name).write_text(str(value), encoding="ascii")
    except OSError as error:
        _removed(folder)
        raise NoGroup(f"{parent} does not accept limits: {error.strerror}") from error
    return Group(folder)


@lru_cache(maxsize=1)
def parent_here() -> Path:
    """Return the group that may have groups of ours beneath it.

    Raises:
        NoGroup: there is none.
    """
    mount, own = _places(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
    reasons = []
    # A group that processes stand in can have no limited ones beneath; with systemd's
    # DelegateSubgroup= it is the one above that was handed over.
    for folder in dict.fromkeys((own, own.parent if own != mount else own)):
        reason = _unfit(folder, is_mount=folder == mount)
        if reason is None:
            return folder
        reasons.append(f"{folder} {reason}")
    raise NoGroup("; ".join(reasons))


def _places(mountinfo: str, cgroup: str) -> tuple[Path, Path]:
    """Return where cgroup v2 is mounted, and the group of this process beneath it."""
    paths = [line[3:] for line in cgroup.split("\n") if line.startswith("0::")]
    for line in mountinfo.split("\n"):
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 ") and paths:
            root, mount = fields.split()[3:5]
            beneath = paths[0].removeprefix(root.rstrip("/")).strip("/")
            return Path(mount), Path(mount) / beneath
    raise NoGroup("cgroup v2 is not mounted")


def _unfit(folder: Path, *, is_mount: bool) -> str | None:
    controllers = _read(folder / "cgroup.controllers").split()
    missing = [name for name in _CONTROLLERS if name not in controllers]
    if missing:
        return f"lacks the controllers {' and '.join(missing)}"
    if not _is_ours(folder, is_mount=is_mount):
        return (
            "is not delegated to Cohort (systemd: Delegate=yes, DelegateSubgroup=main)"
        )
    handed_on = _read(folder / "cgroup.subtree_control").split()
    additions = [f"+{name}" for name in _CONTROLLERS if name not in handed_on]
    try:
        if additions:
            control = folder / "cgroup.subtree_control"
            control.write_text(" ".join(additions), encoding="ascii")
    except OSError as error:
        return f"cannot delegate controllers: {error.strerror}"
    return None if os.access(folder, os.W_OK) else "is not writable"


def _is_ours(folder: Path, *, is_mount: bool) -> bool:
    """Handed over by systemd, owned, or a container's root (which alone has a type)."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    if is_mount:
        return (folder / "cgroup.type").exists()
    uid = os.geteuid()
    return uid != 0 and folder.stat().st_uid == uid


def _ours_in(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from parent.glob(f"{_PREFIX}-*")


def _is_populated(folder: Path) -> bool:
    return "populated 1" in _read(folder / "cgroup.events")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # someone is still in it
        return False
    return True


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


# Users

# Numbers that no user has: below are those of people, systems and containers.
FIRST_UID, NUM_UIDS = 1_879_048_192, 2**20
NOBODY = 65_534
_TRIES = 50


class Uid:
    """A user's number, and the right to it until `release`."""

    def __init__(self, number: int, held: socket.socket | None) -> None:
        self.number = number
        self._held = held

    def release(self) -> None:
        if self._held is not None:
            self._held.close()


def reserve_uid() -> Uid:
    """Give a number that no other sandbox here has; no one's where none can be had."""
    random_numbers = random.SystemRandom()
    for _ in range(_TRIES):
        number = random_numbers.randrange(FIRST_UID, FIRST_UID + NUM_UIDS)
        if not _is_mapped(number):
            break
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0cohort-sandbox-{number}")
        except OSError:  # another sandbox's
            lock.close()
        else:
            return Uid(number, lock)
    return Uid(NOBODY, None)


def _is_mapped(number: int) -> bool:
    """Return whether this machine, perhaps a container, has a user of this number."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= number < first + count for first, _, count in ranges)
