"""The use of a machine, and of one process on it, between two looks."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from dashboard.training.system.nvml import Gpus
from dashboard.training.system.proc import (
    Pair,
    ProcessUse,
    list_tree,
    read_cpu_seconds,
    read_disk_free,
    read_disks,
    read_memory_used,
    read_network,
    read_process,
    told,
)

# In this order in SystemSample.values; behind them use and memory of each GPU.
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


class Reader:
    """Looks at a machine, and at the processes under `pid` when it is given."""

    def __init__(self, folder: Path, *, pid: int | None = None) -> None:
        self._folder = folder
        self._pid = pid
        self._gpus = Gpus()
        self._look = _Look(pid)

    def read(self) -> Values:
        """METRICS and the GPUs', since the last call or the beginning."""
        before, now = self._look, _Look(self._pid)
        self._look = now
        seconds = max(1e-3, now.time - before.time)
        trainer_cpu = _trainer_seconds(before.processes, now.processes)
        num_cores = os.cpu_count() or 1
        has_trainer = bool(now.processes)
        values: Values = [
            100 * trainer_cpu / seconds / num_cores if has_trainer else None,
            _percent(before.cpu, now.cpu),
            _sum_memory(now.processes) if has_trainer else None,
            told(read_memory_used),
            told(lambda: read_disk_free(self._folder)),
            *_rates(before.disks, now.disks, seconds),
            *_rates(before.network, now.network, seconds),
        ]
        for gpu in self._gpus.read():
            values += [gpu.percent, gpu.memory_bytes]
        return values


class _Look:
    def __init__(self, pid: int | None) -> None:
        self.time = time.monotonic()
        self.cpu = told(read_cpu_seconds)
        self.disks = told(read_disks)
        self.network = told(read_network)
        self.processes = _read_tree(pid) if pid is not None else {}


def _read_tree(pid: int) -> dict[int, ProcessUse]:
    found = {}
    for one in list_tree(pid):
        if use := told(partial(read_process, one)):
            found[one] = use
    return found


def _trainer_seconds(
    before: dict[int, ProcessUse], now: dict[int, ProcessUse]
) -> float:
    """Of those still there: what one that has gone did last is not known."""
    nothing = ProcessUse(0.0, 0)
    return sum(
        max(0.0, use.cpu_seconds - before.get(pid, nothing).cpu_seconds)
        for pid, use in now.items()
    )


def _sum_memory(processes: dict[int, ProcessUse]) -> float:
    return float(sum(use.memory_bytes for use in processes.values()))


def _percent(
    before: tuple[float, float] | None, now: tuple[float, float] | None
) -> float | None:
    if before is None or now is None or now[1] <= before[1]:
        return None
    # Differences of large sums may be off in the last digit.
    return min(100.0, 100 * (now[0] - before[0]) / (now[1] - before[1]))


def _rates(before: Pair | None, now: Pair | None, seconds: float) -> Values:
    if before is None or now is None:
        return [None, None]
    return [
        max(0, now.inward - before.inward) / seconds,
        max(0, now.outward - before.outward) / seconds,
    ]
