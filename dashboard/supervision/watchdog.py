"""What a supervisor watches: memory kills, and a trainer that hangs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.process import TrainerProcess

PROC = Path("/proc")
MACHINE = PROC / "vmstat"
WINDOW_SECONDS = 30.0  # for a large process to exit
_V2 = ("memory.events.local", "memory.events")  # the first since Linux 5.2
_V1 = ("memory.oom_control",)
HANG_SECONDS = 1_800.0  # longer than any part of a step that gives no sign
PATIENCE_SECONDS = 20.0  # to dump its stacks and to continue


class MemoryKills:
    """The kernel's counts around one process, as they were a while ago and now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: deque[tuple[float, Mapping[Path, int]]] = deque()
        self.check()

    def check(self) -> None:
        """Call it about once a second while the process is alive:

        a dead one has no cgroup.
        """
        counts = {
            file: _read_count(file) for file in [*group_files(self._pid), MACHINE]
        }
        counted = {file: n for file, n in counts.items() if n is not None}
        self._looks.append((time.monotonic(), counted))
        while self._looks[0][0] < self._looks[-1][0] - WINDOW_SECONDS:
            self._looks.popleft()

    def has_risen(self) -> bool:
        """Tell whether the kernel has ended a process of the group or machine."""
        before: dict[Path, int] = {}
        for _, counts in self._looks:
            before = dict(counts) | before
        return any((_read_count(file) or 0) > count for file, count in before.items())


def group_files(pid: int) -> list[Path]:
    """Paths of the OOM counters of the process's cgroups; [] if there are none."""
    groups = _read(PROC / str(pid) / "cgroup")
    mounts = _read(PROC / "self" / "mountinfo")
    if groups is None or mounts is None:
        return []
    files = (file for line in groups.splitlines() for file in _candidates(line, mounts))
    return [file for file in files if file.exists()][:1]


def _candidates(line: str, mounts: str) -> Iterator[Path]:
    """Read a line of /proc/PID/cgroup, "4:memory:/a/group" or "0::/a/group"."""
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
    counts = dict(line.split() for line in (_read(file) or "").splitlines())
    return int(counts["oom_kill"]) if "oom_kill" in counts else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return None


class Periodic:
    """Calls an action when it is due, however often it is called itself."""

    def __init__(self, action: Callable[[], object], every: float) -> None:
        self._action = action
        self._every = every
        self._due = time.monotonic() + every

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._action()


class Watchdog:
    """Watches the modification time of a file that the trainer touches on progress.

    Only changes count, timed by this process's clock, so neither clock adjustments nor
    a slow disk's timestamps matter.
    """

    def __init__(
        self,
        trainer: TrainerProcess,
        pulse: Path,
        supervisor_log: SupervisorLog,
        *,
        hang_seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._trainer = trainer
        self._pulse = pulse
        self._log = supervisor_log
        self._hang_seconds = hang_seconds
        self._patience_seconds = patience_seconds
        self._seen: int | None = None
        self._moved_at = time.monotonic()
        self._dump_requested_at: float | None = None
        self.has_killed = False

    @property
    def silent_for(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._moved_at)

    def check(self) -> None:
        """Loading has no limit: the trainer first touches the file after it."""
        now, seen = time.monotonic(), self._read()
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
            if self._dump_requested_at is not None:
                self._log.write("The trainer continues.")
            self._dump_requested_at = None
        elif seen is None:
            return
        elif self._dump_requested_at is None:
            if now - self._moved_at > self._hang_seconds:
                self._dump_requested_at = time.monotonic()
                self._log.write(
                    f"The trainer made no progress for {self._hang_seconds:g} s. "
                    "Cohort logs its stack traces (see the trainer log) and kills it "
                    f"in {self._patience_seconds:g} s unless it continues."
                )
                self._trainer.ask_where_it_is()
        elif (
            now - self._dump_requested_at > self._patience_seconds
            and not self.has_killed
            and not self._trainer.has_exited()
        ):
            self.has_killed = True
            self._log.write("The trainer hung and was killed.")
            self._trainer.kill()

    def _read(self) -> int | None:
        try:
            return self._pulse.stat().st_mtime_ns
        except OSError:
            return None
