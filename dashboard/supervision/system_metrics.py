"""The use of a machine, and of one process on it, between two samples."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
# The order in SystemSample.values; use and memory of each GPU follow.
METRICS = (
    "trainer_cpu",  # % of the machine's cores
    "cpu",  # %
    "trainer_memory",  # bytes, resident, of the trainer and what it started
    "memory",  # bytes
    "disk_free",  # bytes, where COHORT_DATA is
    "disk_read",  # bytes a second
    "disk_written",
    "network_received",
    "network_sent",
)
Values = list[float | None]
BLOCK = Path("/sys/block")
# Virtual disks: they lie on one that is counted.
STACKED = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
_Counts = tuple[float, float]


class Reader:
    """Samples a machine, and the processes under `pid` if it is given."""

    def __init__(self, folder: Path, *, pid: int | None = None) -> None:
        self._folder = str(folder)
        self._pid = pid
        self._gpus = Gpus()
        self._snapshot = _Snapshot(pid)

    def read(self) -> Values:
        """Read METRICS and the GPUs', since the last call or the beginning."""
        before, now = self._snapshot, _Snapshot(self._pid)
        self._snapshot = now
        seconds = max(1e-3, now.time - before.time)
        has_trainer = bool(now.processes)
        # The last use of an exited process is unknown.
        trainer_cpu = sum(
            max(0.0, use.cpu_seconds - before.processes.get(pid, _IDLE).cpu_seconds)
            for pid, use in now.processes.items()
        )
        memory = sum(use.memory_bytes for use in now.processes.values())
        values: Values = [
            100 * trainer_cpu / seconds / (os.cpu_count() or 1)
            if has_trainer
            else None,
            _percent(before.cpu, now.cpu),
            float(memory) if has_trainer else None,
            _or_none(_read_memory),
            _or_none(lambda: psutil.disk_usage(self._folder).free),
            *_rates(before.disks, now.disks, seconds),
            *_rates(before.network, now.network, seconds),
        ]
        return values + self._gpus.read()


class Gpus:
    """The GPUs that this process may use; none without an NVIDIA driver."""

    def __init__(self) -> None:
        # 18 MB, of which a web process that imports METRICS has no use.
        import pynvml  # noqa: PLC0415 - see above

        self._nvml: Any = pynvml
        self._handles: list[Any] = []
        try:
            pynvml.nvmlInit()
            chosen = chosen_gpus(os.environ)
            if chosen is None:
                chosen = [str(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return
        handles = (self._read_or_none(self._find, name) for name in chosen)
        self._handles = [handle for handle in handles if handle is not None]

    def read(self) -> Values:
        """Read each GPU's % of time with a kernel running, and its bytes in use."""
        values: Values = []
        for gpu in self._handles:
            use = self._read_or_none(self._nvml.nvmlDeviceGetUtilizationRates, gpu)
            memory = self._read_or_none(self._nvml.nvmlDeviceGetMemoryInfo, gpu)
            values += [use and float(use.gpu), memory and float(memory.used)]
        return values

    def _find(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _read_or_none(self, call: Callable[[Any], Any], about: Any) -> Any:
        try:
            return call(about)
        except self._nvml.NVMLError:
            return None


def chosen_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Numbers or UUIDs in CUDA_VISIBLE_DEVICES; None: all."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    return [name.strip() for name in value.split(",") if name.strip() not in ("", "-1")]


@dataclass(frozen=True, slots=True)
class _Use:
    cpu_seconds: float
    memory_bytes: int  # resident


_IDLE = _Use(0.0, 0)


class _Snapshot:
    """Counts since the machine, or the process, started."""

    def __init__(self, pid: int | None) -> None:
        self.time = time.monotonic()
        self.cpu = _or_none(_read_cpu)
        self.disks = _or_none(_read_disks)
        self.network = _or_none(_read_network)
        self.processes = _read_tree(pid) if pid is not None else {}


def _read_cpu() -> _Counts:
    """Busy and all seconds, summed over the cores."""
    times = psutil.cpu_times()._asdict()
    # Linux counts guests among the users already.
    total = sum(times.values()) - times.get("guest", 0) - times.get("guest_nice", 0)
    return total - times["idle"] - times.get("iowait", 0), total


def _read_memory() -> float:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def _read_disks() -> _Counts:
    """Bytes read and written, of every disk."""
    disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
    own = {path.name for path in BLOCK.iterdir() if not path.name.startswith(STACKED)}
    counts = [count for name, count in disks.items() if name in own]
    return sum(c.read_bytes for c in counts), sum(c.write_bytes for c in counts)


def _read_network() -> _Counts:
    """Bytes received and sent, of every interface but the loopback."""
    counts = [
        count
        for name, count in psutil.net_io_counters(pernic=True, nowrap=False).items()
        if name != "lo"
    ]
    return sum(c.bytes_recv for c in counts), sum(c.bytes_sent for c in counts)


def _read_tree(pid: int) -> dict[int, _Use]:
    """Read the process and its descendants that are alive."""
    uses = {}
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return {}
    for process in tree:
        if use := _or_none(partial(_read_process, process)):
            uses[process.pid] = use
    return uses


def _read_process(process: psutil.Process) -> _Use:
    times = process.cpu_times()
    return _Use(times.user + times.system, process.memory_info().rss)


def _percent(before: _Counts | None, now: _Counts | None) -> float | None:
    if before is None or now is None or now[1] <= before[1]:
        return None
    # Differences of large sums may be off in the last digit.
    return min(100.0, 100 * (now[0] - before[0]) / (now[1] - before[1]))


def _rates(before: _Counts | None, now: _Counts | None, seconds: float) -> Values:
    if before is None or now is None:
        return [None, None]
    return [max(0.0, n - b) / seconds for b, n in zip(before, now, strict=True)]


def _or_none(read: Callable[[], T]) -> T | None:
    """Read a value; None if this system does not report it."""
    try:
        return read()
    except (psutil.Error, OSError, NotImplementedError, ValueError, KeyError):
        return None
