"""What Linux counts under /proc; None where this system does not tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PROC = Path("/proc")
BLOCK = Path("/sys/block")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own
# Not disks of their own: they lie on one that is counted.
STACKED = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")


@dataclass(frozen=True, slots=True)
class Pair:
    """Bytes in both directions, since the machine started."""

    inward: int
    outward: int


def told(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (OSError, ValueError, IndexError, KeyError):
        return None


def read_cpu_seconds() -> tuple[float, float]:
    """Busy and all, summed over the cores."""
    line = (PROC / "stat").read_text().split("\n", 1)[0]
    ticks = [int(field) for field in line.split()[1:9]]  # guests are in user
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS, sum(ticks) / TICKS


def read_memory_used() -> int:
    lines = (PROC / "meminfo").read_text().splitlines()
    kib = {
        name: int(rest.split()[0])
        for name, _, rest in (x.partition(":") for x in lines)
    }
    return (kib["MemTotal"] - kib["MemAvailable"]) * 1024


def read_disks() -> Pair:
    """Read and written, of every disk."""
    disks = {path.name for path in BLOCK.iterdir()}
    disks = {name for name in disks if not name.startswith(STACKED)}
    rows = [line.split() for line in (PROC / "diskstats").read_text().splitlines()]
    rows = [row for row in rows if row[2] in disks]
    return Pair(
        sum(int(row[5]) for row in rows) * SECTOR_BYTES,
        sum(int(row[9]) for row in rows) * SECTOR_BYTES,
    )


def read_network() -> Pair:
    """Received and sent, of every interface but the loopback."""
    lines = (PROC / "net/dev").read_text().splitlines()[2:]
    rows = [line.partition(":") for line in lines]
    counts = [rest.split() for name, _, rest in rows if name.strip() != "lo"]
    return Pair(sum(int(c[0]) for c in counts), sum(int(c[8]) for c in counts))


def read_disk_free(folder: Path) -> int:
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize


def read_disk_size(folder: Path) -> int:
    there = os.statvfs(folder)
    return there.f_blocks * there.f_frsize


def list_tree(pid: int) -> Iterator[int]:
    """The process and all that it started, as far as they are there."""
    yield pid
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        children = told((task / "children").read_text)
        for child in (children or "").split():
            yield from list_tree(int(child))


@dataclass(frozen=True, slots=True)
class ProcessUse:
    cpu_seconds: float
    memory_bytes: int  # resident


def read_process(pid: int) -> ProcessUse:
    fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    return ProcessUse(
        (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES
    )
