"""A sign of life while a step goes on: the time of a file, for whoever watches a run.

A step may take an hour and says nothing before its end. What moves within it, a token
of all completions, a micro-batch, a tensor of a checkpoint, touches the file, at most
once a second. Where nothing has moved for long, the run hangs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "pulse"
_EVERY_SECONDS = 1.0


class _Pulse:
    path: Path | None = None
    due = 0.0


_pulse = _Pulse()


def begin_heartbeat(folder: Path) -> None:
    """From now on `tick` touches a file in this folder."""
    _pulse.path, _pulse.due = folder / NAME, 0.0
    with suppress(OSError):  # of a full disk, say
        _pulse.path.touch()


def tick() -> None:
    """Something moved; a microsecond, but for once a second."""
    now = time.monotonic()
    if now < _pulse.due or _pulse.path is None:
        return
    _pulse.due = now + _EVERY_SECONDS
    with suppress(OSError):
        os.utime(_pulse.path)


@contextmanager
def ticking() -> Iterator[None]:
    """Beat while another machine is waited for: it has a time limit of its own."""
    if _pulse.path is None:
        yield
        return
    end = threading.Event()

    def keep_on() -> None:
        while not end.wait(_EVERY_SECONDS):
            tick()

    threading.Thread(target=keep_on, daemon=True, name="pulse").start()
    try:
        yield
    finally:
        end.set()
