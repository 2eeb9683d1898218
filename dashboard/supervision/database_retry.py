"""Trying again while the database is away, until it has been away for too long."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

from dashboard.supervision.event_log import SupervisorLog

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1


class TooLate(Exception):
    """The worker shuts down before the database did it: the lease will run out."""


class DatabaseRetry:
    """Does one action that needs the database, or retries it after a growing wait.

    Each action has its own instance, since the database may refuse only one, because of
    a lock or a full disk, and others must not wait for it.
    """

    def __init__(self, supervisor_log: SupervisorLog, doing: str) -> None:
        self._log = supervisor_log
        self._doing = doing
        self._wait = FIRST_WAIT_SECONDS
        self._retry_at = 0.0
        self._down_since: float | None = None

    @property
    def down_seconds(self) -> float:
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def attempt(self, action: Callable[[], object]) -> bool:
        """False: not done, and to be tried again."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            action()
        except (OperationalError, InterfaceError) as error:
            if self._down_since is None:
                self._down_since = time.monotonic()
                self._log.write(
                    f"{self._doing} failed and is retried: {str(error).strip()}"
                )
            connection.close()  # the next attempt begins with a new one
            self._retry_at = time.monotonic() + self._wait
            self._wait = min(2 * self._wait, LONGEST_WAIT_SECONDS)
            return False
        if self._down_since is not None:
            self._log.write(f"{self._doing} succeeded after {self.down_seconds:.0f} s.")
        self._down_since = None
        self._wait = FIRST_WAIT_SECONDS
        self._retry_at = 0.0
        return True

    def insist(
        self,
        action: Callable[[], object],
        *,
        is_too_late: Callable[[float], bool],
        meanwhile: Callable[[], object],
    ) -> None:
        """Try until it is done; TooLate where it has failed for too long by then."""
        while not self.attempt(action):
            if is_too_late(self.down_seconds):
                raise TooLate
            meanwhile()
            time.sleep(POLL_SECONDS)
