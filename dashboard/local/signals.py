"""Ctrl-C, SIGTERM and a closed terminal all mean: stop in order."""

from __future__ import annotations

import signal
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(BaseException):
    """Asked to end. Not an Exception, so that no `except Exception` swallows it."""


def _stop(signum: int, frame: FrameType | None) -> None:
    raise Stop


def stop_on_signals() -> None:
    for name in STOPPING:
        signal.signal(name, _stop)


def ignore_signals() -> None:
    """While stopping: a second Ctrl-C would leave processes behind."""
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)
