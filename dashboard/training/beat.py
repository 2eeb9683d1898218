"""What must be done every so often, in a loop that has other things to do."""

from __future__ import annotations

import time
from collections.abc import Callable


class Beat:
    """Calls an action when it is due, however often it is called itself."""

    def __init__(self, action: Callable[[], object], every: float) -> None:
        self._action = action
        self._every = every
        self._due = time.monotonic() + every

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._action()
