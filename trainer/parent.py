"""Ending with the supervisor, so that no trainer is left behind holding a GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

EXIT_ORPHANED = 75
PIPE = "COHORT_PARENT_PIPE"
_PR_SET_PDEATHSIG = 1


def watch_parent() -> None:
    """End this process at once when the supervisor that started it is gone.

    The supervisor keeps the writing end of a pipe open and names the reading end in
    COHORT_PARENT_PIPE; the kernel closes it however the supervisor dies. The signal is
    a second string: it also reaches a process that is stuck in a long computation.
    """
    number = os.environ.get(PIPE)
    if not number:
        return
    if not number.isdigit():
        raise ValueError(
            f"COHORT_PARENT_PIPE must be the number of an open pipe; got {number!r}."
        )
    pipe = int(number)
    try:
        os.fstat(pipe)
    except OSError:
        raise ValueError(
            f"COHORT_PARENT_PIPE names {number}, which is not open here. Pass the "
            "pipe to the trainer when starting it."
        ) from None
    die_with_parent()
    threading.Thread(target=_wait, args=(pipe,), daemon=True, name="parent").start()


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(EXIT_ORPHANED)
