"""Ending this process, whatever its threads are still doing."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

SAMPLING_THREAD = "sampling-ahead"
_GRACE_SECONDS = 5.0


def exit_process(code: int) -> NoReturn:
    """End the process with an exit code.

    A run that has failed may have a thread that still samples for it, for hours where a
    server does. Python would end such a thread in the middle of torch's code, which
    aborts the process and loses the exit code; so it goes without Python's farewell.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    sampling = [t for t in threading.enumerate() if t.name == SAMPLING_THREAD]
    for thread in sampling:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in sampling):
        _say_the_rest()
        os._exit(code)
    _say_the_rest()
    sys.exit(code)


def _say_the_rest() -> None:
    """Of an output that takes nothing more the code tells at least."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Python would try once more, and end with a code of its own.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
