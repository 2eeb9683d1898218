"""The actors' sessions, as the server sees them: who waits for whom."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from django.db import connection

GONE_SECONDS = 30.0


class Sessions:
    """By a connection of its own, which waits for nobody."""

    def __init__(self) -> None:
        self._connection = psycopg.connect(
            **connection.get_connection_params(), autocommit=True
        )

    def close(self) -> None:
        self._connection.close()

    def waits(self, pid: int) -> bool:
        """Whether it waits for a lock that another session of this database holds."""
        return bool(self._blockers(pid))

    def refuse_deadlock(self, pid: int, name: str) -> None:
        """The server would end one of them: a request of it, or a supervisor's wait."""
        seen, waiting = set[int](), {pid}
        while waiting:
            seen |= waiting
            found = {blocker for one in waiting for blocker in self._blockers(one)}
            told = [
                self._ask("SELECT query FROM pg_stat_activity WHERE pid = %s", one)
                for one in sorted(seen)
            ]
            assert pid not in found, f"{name} and another wait for each other: {told}"
            waiting = found - seen

    def is_in_transaction(self, pid: int) -> bool:
        state = self._ask("SELECT state FROM pg_stat_activity WHERE pid = %s", pid)
        return str(state).startswith("idle in transaction")

    def end_wait(self, pid: int) -> None:
        """As lock_timeout does, which every process of Cohort sets to 3 s."""
        self._ask("SELECT pg_cancel_backend(%s)", pid)
        while self.waits(pid):
            time.sleep(0.002)

    def end(self, pid: int) -> None:
        """As idle_in_transaction_session_timeout does, which is 60 s everywhere."""
        self._ask("SELECT pg_terminate_backend(%s)", pid)
        self.wait_for_end(pid)

    def wait_for_end(self, pid: int) -> None:
        until = time.monotonic() + GONE_SECONDS
        while self._ask("SELECT pid FROM pg_stat_activity WHERE pid = %s", pid):
            assert time.monotonic() < until, f"session {pid} does not end"
            time.sleep(0.002)

    def _blockers(self, pid: int) -> list[int]:
        return (
            self._ask(
                "SELECT array(SELECT pid FROM pg_stat_activity WHERE pid = "
                "ANY(pg_blocking_pids(%s)) AND backend_type = 'client backend')",
                pid,
            )
            or []
        )

    def _ask(self, question: str, pid: int) -> Any:
        row = self._connection.execute(question, [pid]).fetchone()
        return row and row[0]
