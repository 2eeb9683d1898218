"""Whether this worker is shutting down, known in all its processes."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from typing import Any

# One byte of memory shared with the pool's processes, which are forked after this
# module is loaded. No lock, as it is set from a signal handler.
_flag = mmap.mmap(-1, 1)
_has_sigterm = False  # this process, by its own signal
_handler_before: Any = None


def announce() -> None:
    _flag[0] = 1


def is_announced() -> bool:
    return _has_sigterm or _flag[0] == 1


def begin_task() -> None:
    """Make SIGTERM only set a flag from now on; it raises no exception.

    An exception in the middle of a COMMIT would leave a broken connection, and Django's
    error would hide the cause.
    """
    global _handler_before
    if threading.current_thread() is threading.main_thread():
        _handler_before = signal.signal(signal.SIGTERM, _note_sigterm)


def end_task() -> None:
    """End a process that got SIGTERM in between."""
    global _handler_before, _has_sigterm
    if _handler_before is None:
        return
    signal.signal(signal.SIGTERM, _handler_before)
    _handler_before = None
    if _has_sigterm:
        _has_sigterm = False
        os.kill(os.getpid(), signal.SIGTERM)


def _note_sigterm(*_: object) -> None:
    global _has_sigterm
    _has_sigterm = True
