"""Whether it was the kernel that ended a process, for want of memory.

SIGKILL does not tell who sent it. The kernel counts the processes that it ends when
memory runs out: for each control group with a limit, and for the machine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

PROC = Path("/proc")
MACHINE = PROC / "vmstat"
WINDOW_SECONDS = 30.0  # that a large process may take to be gone
_V2 = ("memory.events.local", "memory.events")  # the first since Linux 5.2
_V1 = ("memory.oom_control",)


class MemoryKills:
    """The kernel's counts around one process, as they were a while ago and now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: deque[tuple[float, Mapping[Path, int]]] = deque()
        self.look()

    def look(self) -> None:
        """Once a second or so while the process lives: the dead are in no group."""
        files = [*group_files(self._pid), MACHINE]
        counts = {file: _read_count(file) for file in files}
        known = {file: n for file, n in counts.items() if n is not None}
        self._looks.append((time.monotonic(), known))
        while self._looks[0][0] < self._looks[-1][0] - WINDOW_SECONDS:
            self._looks.popleft()

    def has_risen(self) -> bool:
        """Whether the kernel has ended a process of the group, or of the machine."""
        before: dict[Path, int] = {}
        for _, counts in self._looks:
            before = dict(counts) | before
        return any((_read_count(file) or 0) > count for file, count in before.items())


def group_files(pid: int) -> list[Path]:
    """Where the count of the process's own control group stands; [] where nowhere."""
    groups = _read(PROC / str(pid) / "cgroup")
    mounts = _read(PROC / "self" / "mountinfo")
    if groups is None or mounts is None:
        return []
    found = (file for line in groups.splitlines() for file in _candidates(line, mounts))
    return [file for file in found if file.exists()][:1]


def _candidates(line: str, mounts: str) -> Iterator[Path]:
    """Of a line of /proc/PID/cgroup, "4:memory:/a/group" or "0::/a/group"."""
    number, controllers, path = line.split(":", 2)
    is_v2 = number == "0" and not controllers
    if not is_v2 and "memory" not in controllers.split(","):
        return
    for mount in mounts.splitlines():
        fields, _, rest = mount.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        is_v1_memory = kind == "cgroup" and "memory" in options.split(",")
        if (kind == "cgroup2") if is_v2 else is_v1_memory:
            root, at = fields.split()[3:5]
            folder = Path(at) / path.removeprefix(root.rstrip("/")).strip("/")
            yield from (folder / name for name in (_V2 if is_v2 else _V1))


def _read_count(file: Path) -> int | None:
    lines = (_read(file) or "").splitlines()
    counts = dict(line.split() for line in lines)
    return int(counts["oom_kill"]) if "oom_kill" in counts else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return None
