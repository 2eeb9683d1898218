"""Ending this process, whatever its threads are still doing."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

SAMPLING_THREAD = "sampling-ahead"
_GRACE_SECONDS = 5.0


def leave(code: int) -> NoReturn:
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
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
