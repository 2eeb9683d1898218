"""Whether this worker was told to shut down, known in all its processes."""

from __future__ import annotations

import mmap

# One byte of memory shared with the pool's processes, which are forked after this
# module is loaded. No lock, as it is set from a signal handler.
_flag = mmap.mmap(-1, 1)


def announce() -> None:
    _flag[0] = 1


def is_announced() -> bool:
    return _flag[0] == 1
