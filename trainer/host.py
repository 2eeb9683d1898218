"""Cores, memory, imports and the heartbeat of a trainer process."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_KEPT_BYTES = 2**30
# The most that glibc takes; larger blocks are the system's, and go back to it.
_LARGEST_KEPT_BLOCK = 32 * 2**20


def settle_in() -> None:
    """Set what must be set before torch is loaded; what the user has set stays."""
    # torch's threads wait for one another by spinning. On cores shared with a web
    # server or a browser that made a step of a small model 40 times slower; to sleep at
    # once makes it twice as slow on idle cores. So they spin for less than a
    # millisecond, then sleep. OpenMP reads this when torch is loaded, not later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Micro-batches of many sizes would leave holes in a GPU's memory. By this name,
    # though torch has a newer one: vLLM reads it to switch them off for its own pools.
    if "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Have glibc keep freed memory for the next step. Else it returns memory to the
    # system, which gives it back as zeroed pages: a tenth of a small model's step.
    _tell_malloc(_TRIM_THRESHOLD, _KEPT_BYTES, unless="MALLOC_TRIM_THRESHOLD_")
    _tell_malloc(_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK, unless="MALLOC_MMAP_THRESHOLD_")


def num_cores() -> int:
    """Give those that this process may use, which can be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def keep_large_blocks() -> None:
    """Have glibc keep the memory of large tensors for reuse, for training on a CPU.

    A batch's logits and products are larger than what glibc keeps by default. A step of
    a model of 135 million parameters took 0.86 of the time with 5 % more peak memory.
    Not for a model on its way to a GPU, whose memory would never be freed.
    """
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        _tell_malloc(_MMAP_MAX, 0, unless="MALLOC_MMAP_MAX_")


def bound_arenas() -> None:
    """Have the threads of a server share two arenas of glibc's.

    Else each keeps what its largest request took. Before any thread is started.
    """
    _tell_malloc(_ARENA_MAX, 2, unless="MALLOC_ARENA_MAX")


def _tell_malloc(parameter: int, value: int, *, unless: str) -> None:
    """Set it where the C library is glibc and the environment doesn't already."""
    if not sys.platform.startswith("linux") or unless in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


def load_module(name: str) -> ModuleType:
    """Import a module with garbage collection off, and freeze the new objects.

    Collections over half a million module objects took a fifth of a trainer's start.
    """
    if name in sys.modules:
        return sys.modules[name]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


PULSE_FILE = "pulse"
_EVERY_SECONDS = 1.0


class _Pulse:
    path: Path | None = None
    due = 0.0
    count = 0


_pulse = _Pulse()


def begin_heartbeat(folder: Path) -> None:
    """Let `tick` touch a file in this folder from now on."""
    _pulse.path, _pulse.due = folder / PULSE_FILE, 0.0
    with suppress(OSError):  # of a full disk, say
        _pulse.path.touch()


def tick() -> None:
    """Something moved; a microsecond, but for once a second."""
    now = time.monotonic()
    if now < _pulse.due:
        return
    _pulse.due = now + _EVERY_SECONDS
    _pulse.count += 1
    if _pulse.path is not None:
        with suppress(OSError):
            os.utime(_pulse.path)


def num_ticks() -> int:
    """Return number of ticks, at most one a second."""
    return _pulse.count


@contextmanager
def ticking() -> Iterator[None]:
    """Beat while another machine is waited for: it has a time limit of its own."""
    end = threading.Event()

    def keep_on() -> None:
        while not end.wait(_EVERY_SECONDS):
            tick()

    threading.Thread(target=keep_on, daemon=True, name="pulse").start()
    try:
        yield
    finally:
        end.set()
