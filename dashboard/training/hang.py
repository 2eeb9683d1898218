"""A trainer that gives no sign of life is asked where it is, and then ended."""

from __future__ import annotations

import time
from pathlib import Path

from dashboard.training.journal import Journal
from dashboard.training.process import TrainerProcess

HANG_SECONDS = 1_800.0  # longer than any part of a step that gives no sign
PATIENCE_SECONDS = 20.0  # to print where it is, and to go on


class HangWatch:
    """Looks at the time of a file that the trainer touches while anything moves.

    Only that it changes counts, by this process's clock: neither a clock that is set
    nor a slow disk's own time matters.
    """

    def __init__(
        self,
        trainer: TrainerProcess,
        pulse: Path,
        journal: Journal,
        *,
        hang_seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._trainer = trainer
        self._pulse = pulse
        self._journal = journal
        self._hang_seconds = hang_seconds
        self._patience_seconds = patience_seconds
        self._seen: int | None = None
        self._moved_at = time.monotonic()
        self._asked_at: float | None = None
        self.has_killed = False

    def look(self) -> None:
        """Loading may take as long as it takes: the first sign is given behind it."""
        now, seen = time.monotonic(), self._read()
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
            if self._asked_at is not None:
                self._journal.write("The trainer goes on, so it is left alone.")
            self._asked_at = None
        elif seen is None:
            return
        elif self._asked_at is None:
            if now - self._moved_at > self._hang_seconds:
                self._ask()
        elif now - self._asked_at > self._patience_seconds:
            self._kill()

    def _read(self) -> int | None:
        try:
            return self._pulse.stat().st_mtime_ns
        except OSError:
            return None

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        self._journal.write(
            f"The trainer has given no sign of life for {self._hang_seconds:g} s. It "
            "is asked to print where each of its threads is (see its own log), and "
            f"ended unless it goes on within {self._patience_seconds:g} s."
        )
        self._trainer.ask_where_it_is()

    def _kill(self) -> None:
        if self.has_killed or self._trainer.has_exited():
            return
        self.has_killed = True
        self._journal.write("The trainer hangs and was killed.")
        self._trainer.kill()
