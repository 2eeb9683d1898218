"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool]) -> None:
    """Look often: nothing tells of another process's file or a queue's length."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
