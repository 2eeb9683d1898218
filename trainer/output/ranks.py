"""What each process of a run uses: its node, device, memory and times of a step."""

from __future__ import annotations

import os
import resource
import socket
from functools import cache
from pathlib import Path

import torch

from trainer.events import RankMeasured, RanksMeasured
from trainer.output.log import EventLog
from trainer.output.metrics import Stopwatch
from trainer.parallel.world import World


def record_ranks(
    log: EventLog, world: World, device: torch.device, watch: Stopwatch, *, step: int
) -> None:
    """Add the step's times and memory of all ranks to the log; all ranks call it.

    Gathering them takes 1 ms with 2 processes of one machine.
    """
    if world.size == 1:
        return
    memory, total = _memory_of(device)
    own = RankMeasured(
        node=socket.gethostname(),
        device=_name_of(device),
        memory_bytes=memory,
        memory_total_bytes=total,
        seconds={name: _short(value) for name, value in watch.own_seconds().items()},
    )
    ranks = world.gather(own)
    log.add(RanksMeasured, step=step, ranks=ranks)


@cache
def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _memory_of(device: torch.device) -> tuple[int | None, int | None]:
    """Used and all: of the GPU by all processes, as an engine may share it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    page = resource.getpagesize()
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        statm = Path("/proc/self/statm").read_text("ascii")
    except OSError:  # not Linux
        return None, total
    return page * int(statm.split()[1]), total


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
