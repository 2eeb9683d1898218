"""Telling how far a long job is, to people or to the program that started it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field

# A line for people each so many seconds; a program gets every one it can draw.
_SECONDS_BETWEEN = {True: 0.2, False: 5.0}


@dataclass
class Progress:
    """Writes `{"phase", "done", "total"}` lines, or the same for people."""

    as_json: bool
    _shown_at: float = field(default=0.0, init=False)
    _phase: str = field(default="", init=False)

    def show(self, phase: str, done: int, total: int) -> None:
        """Report; a report soon after another of the same phase is left out."""
        now = time.monotonic()
        is_edge = phase != self._phase or done == total
        if not is_edge and now - self._shown_at < _SECONDS_BETWEEN[self.as_json]:
            return
        self._phase, self._shown_at = phase, now
        if self.as_json:
            line = json.dumps({"phase": phase, "done": done, "total": total})
        else:
            line = f"{phase}: {done}/{total}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
