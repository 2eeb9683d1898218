"""Who acts on the database: each on a thread and a connection of its own, in turns.

Only one of them runs at a time, as the machine lets it. It gives its turn back where it
sleeps, where it is stalled, and at its end. Its turn is taken from it where it waits
for a lock that another one holds.

Between any two statements of an actor something may happen to it. A point lies before
and behind each statement and COMMIT, and before each COPY. At its n-th point the
process is killed, its connection is lost (behind a COMMIT: what it asked for is done,
and it never hears so), or it is stalled until its next turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from django.db import OperationalError, connection

from dashboard.supervision.lease import Claim

TURN_SECONDS = 60.0  # longer: it hangs
LOOK_SECONDS = 0.02  # how soon one that waits for a lock is noticed
GONE_SECONDS = 30.0
_here = threading.local()

Kind = Literal["crash", "cut", "stall"]
KINDS: tuple[Kind, ...] = ("crash", "cut", "stall")
Fault = tuple[Kind, int] | None  # and at which point


class Killed(BaseException):
    """kill -9: no handler runs, and nothing is cleaned up in the database."""


@dataclass(slots=True)
class Faults:
    """Of one actor."""

    kind: Kind | None = None
    points_left: int = 0  # until it happens
    is_dead: bool = False
    is_cut_off: bool = False  # every statement fails until the network is repaired
    was_cut: bool = False

    def arm(self, fault: Fault) -> None:
        if fault is not None:
            self.kind, self.points_left = fault

    def cease(self) -> None:
        self.kind, self.is_cut_off = None, False

    def check_alive(self) -> None:
        if self.is_dead:
            raise Killed

    def take_due(self) -> Kind | None:
        """What happens at this point; it happens once."""
        if self.kind is None:
            return None
        self.points_left -= 1
        if self.points_left >= 0:
            return None
        kind, self.kind = self.kind, None
        return kind


def pass_point(actor: Actor) -> None:
    faults = actor.faults
    kind = faults.take_due()
    if kind == "stall":
        actor.stall()
    faults.is_dead = faults.is_dead or kind == "crash"
    if faults.is_dead:
        actor.lose_session()
        raise Killed
    if faults.is_cut_off or kind == "cut":
        faults.was_cut = True
        actor.lose_session()
        raise OperationalError("the connection was lost, as the machine wanted")


@contextmanager
def listen(actor: Actor) -> Iterator[None]:
    """Have them happen on this thread's connection meanwhile."""

    def execute(call: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        pass_point(actor)
        try:
            return call(sql, params, many, context)
        finally:
            actor.pass_statement()
            pass_point(actor)

    with connection.execute_wrapper(execute), _beyond_statements(actor):
        yield


@contextmanager
def _beyond_statements(actor: Actor) -> Iterator[None]:
    """COMMIT, ROLLBACK and COPY pass by Django's wrapper of statements."""
    wrapper: Any = connection._connections[connection._alias]  # type: ignore[attr-defined]  # of this thread
    commit, roll_back = wrapper._commit, wrapper._rollback
    create_cursor = wrapper.create_cursor

    def commit_with_points() -> None:
        pass_point(actor)
        commit()
        actor.pass_statement()
        pass_point(actor)

    def roll_back_and_report() -> None:
        roll_back()
        actor.pass_statement()

    def create_cursor_with_points(name: str | None = None) -> Any:
        cursor = create_cursor(name)
        copy = cursor.copy

        def copy_with_point(*args: Any, **kwargs: Any) -> Any:
            pass_point(actor)
            return copy(*args, **kwargs)

        cursor.copy = copy_with_point
        return cursor

    wrapper._commit, wrapper._rollback = commit_with_points, roll_back_and_report
    wrapper.create_cursor = create_cursor_with_points
    try:
        yield
    finally:
        del wrapper._commit, wrapper._rollback, wrapper.create_cursor


class Sessions:
    """On a separate connection, which waits for no lock."""

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
            values = [
                self._ask("SELECT query FROM pg_stat_activity WHERE pid = %s", one)
                for one in sorted(seen)
            ]
            assert pid not in found, f"{name} and another wait for each other: {values}"
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


def current() -> Actor:
    """Whose turn it is, as asked by what runs in it."""
    actor: Actor = _here.actor
    return actor


def current_or_none() -> Actor | None:
    return getattr(_here, "actor", None)


class Actor:
    """One process: a worker with its supervisor, a request, a beat of the reaper."""

    def __init__(
        self, number: int, name: str, body: Callable[[], object], cast: Cast
    ) -> None:
        self.number = number
        self.name = name
        self.faults = Faults()
        self.is_shutting_down = False
        self.claims: list[Claim] = []  # of runs that it took
        self.is_done = False
        self.is_stalled = False  # within a transaction, perhaps
        self.is_blocked = False  # waits for a lock
        self.has_passed = False  # it has it since another's turn, and may continue
        self.is_asleep = False
        self.was_timed_out = False  # the server ended its wait, or its session
        self.idle_seconds = 0.0  # within a transaction
        self.error: BaseException | None = None
        self.pid = 0
        self._body = body
        self._cast = cast
        self._mine = threading.Semaphore(0)
        self._given_back = threading.Semaphore(0)

    @property
    def is_ready(self) -> bool:
        return not (self.is_done or self.is_blocked)

    @property
    def was_killed(self) -> bool:
        # The error may be another, of what was cleaned up on the way out.
        return self.error is not None and self.faults.is_dead

    def has_claimed(self, run_id: int) -> bool:
        return any(claim.run_id == run_id for claim in self.claims)

    def turn(self) -> None:
        """Let it act until it gives its turn back, or waits for another's lock."""
        assert self.is_ready, f"{self.name} cannot act"
        self.is_stalled = self.is_asleep = self.has_passed = False
        self.idle_seconds = 0.0
        self._mine.release()
        until = time.monotonic() + TURN_SECONDS
        while not self.has_given_back():
            if self._cast.sessions.waits(self.pid):
                self.is_blocked = True
                self._cast.sessions.refuse_deadlock(self.pid, self.name)
                return
            assert time.monotonic() < until, f"{self.name} hangs"

    def has_given_back(self) -> bool:
        return self._given_back.acquire(timeout=LOOK_SECONDS)

    def kill(self) -> None:
        """As by kill -9: nothing more of it reaches the database.

        A statement that waits for a lock goes on waiting, as the server does not see
        that no one is there to hear of it.
        """
        self.faults.is_dead = True
        if self.is_ready:
            self.turn()

    # Called by what it does.

    def give_back(self) -> None:
        """It sleeps."""
        self._given_back.release()
        self._mine.acquire()
        self.faults.check_alive()

    def stall(self) -> None:
        """As by SIGSTOP, until its next turn."""
        self.is_stalled = True
        self._given_back.release()
        self._mine.acquire()

    def pass_statement(self) -> None:
        """It has its lock now, if it waited: another's turn has brought it."""
        if self.is_blocked and not self.faults.is_dead:
            self._given_back.release()
            self._mine.acquire()
        elif not self.is_blocked:
            self._cast.settle()

    def lose_session(self) -> None:
        """Close the connection; what was not committed is rolled back by then."""
        if connection.connection is not None:
            connection.connection.close()
            self._cast.sessions.wait_for_end(self.pid)
            if not self.is_blocked:
                self._cast.settle()

    def note_session(self) -> None:
        """What it writes bears its number."""
        self.pid = connection.connection.info.backend_pid
        connection.connection.execute(f"SET machine.actor = '{self.number}'")

    def act(self) -> None:
        """On a thread of the cast."""
        self._mine.acquire()
        _here.actor = self
        try:
            connection.ensure_connection()
            self.note_session()
            self.faults.check_alive()
            with listen(self):
                self._body()
        except BaseException as error:  # noqa: BLE001 - the machine looks at it
            self.error = error
        if self.error is not None or self.faults.was_cut:
            self.lose_session()
            connection.close()
        self.is_done = True
        self._given_back.release()


class Cast:
    """All who act, and the threads that lend their connections to them."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.present: list[Actor] = []
        self._number = 0
        self._idle: list[Thread] = []
        self._all: list[Thread] = []

    def enter(self, name: str, body: Callable[[], object]) -> Actor:
        self._number += 1
        actor = Actor(self._number, name, body, self)
        self.present.append(actor)
        if not self._idle:
            self._idle.append(Thread(self._idle))
            self._all.append(self._idle[-1])
        self._idle.pop().play(actor)
        return actor

    def settle(self) -> None:
        """Wait until each who got a lock just now has it, and no more.

        Without it they would run beside the process that released it.
        """
        while any(self._has_passed(one) for one in self.present if one.is_blocked):
            pass  # it may have let go of the lock that another one waits for

    def _has_passed(self, actor: Actor) -> bool:
        while not actor.has_given_back():
            if self.sessions.waits(actor.pid):
                return False
        actor.is_blocked, actor.has_passed = False, not actor.is_done
        return True

    def pass_time(self, seconds: float) -> None:
        """The server ends what takes too long, as configured."""
        for actor in self.present:
            if actor.is_blocked and seconds > 3:
                actor.was_timed_out = True
                self.sessions.end_wait(actor.pid)
                self.settle()
        for actor in self.present:
            if actor.is_stalled and self.sessions.is_in_transaction(actor.pid):
                actor.idle_seconds += seconds
                if actor.idle_seconds > 60:
                    actor.was_timed_out = True
                    self.sessions.end(actor.pid)
                    self.settle()

    def close(self) -> None:
        for thread in self._all:
            thread.close()
        self.sessions.close()


class Thread:
    """Plays one actor after the other."""

    def __init__(self, idle: list[Thread]) -> None:
        self._idle = idle
        self._actor: Actor | None = None
        self._due = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def play(self, actor: Actor | None) -> None:
        self._actor = actor
        self._due.release()

    def close(self) -> None:
        self.play(None)
        self._thread.join(timeout=10)

    def _serve(self) -> None:
        try:
            while self._due.acquire() and (actor := self._actor) is not None:
                actor.act()
                self._idle.append(self)
        finally:
            connection.close()
