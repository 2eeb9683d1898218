"""Living through a database that cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

from dashboard.training.journal import Journal

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 5.0


class Patience:
    """Does what needs the database, or puts it off with a growing wait."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._wait = FIRST_WAIT_SECONDS
        self._retry_at = 0.0
        self._down_since: float | None = None

    @property
    def down_seconds(self) -> float:
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def attempt(self, action: Callable[[], None]) -> bool:
        """False: not done, and to be tried again."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            action()
        except (OperationalError, InterfaceError) as error:
            self._put_off(error)
            return False
        self._note_return()
        return True

    def insist(self, action: Callable[[], None]) -> None:
        while not self.attempt(action):
            time.sleep(0.1)

    def _put_off(self, error: Exception) -> None:
        if self._down_since is None:
            self._down_since = time.monotonic()
            self._journal.write(
                f"The database cannot be reached; training goes on and its log waits. "
                f"{str(error).strip()}"
            )
        connection.close()  # the next attempt begins with a new one
        self._retry_at = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT_SECONDS)

    def _note_return(self) -> None:
        if self._down_since is not None:
            self._journal.write(
                f"The database is back after {self.down_seconds:.0f} s."
            )
        self._down_since = None
        self._wait = FIRST_WAIT_SECONDS
        self._retry_at = 0.0
