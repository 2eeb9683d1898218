"""What may happen between any two statements of a process, and to each of them.

A point lies before and behind each statement and COMMIT, and before each COPY. At the
n-th point of an actor the process is killed, its connection is lost (behind a COMMIT:
what it asked for is done, and it never hears so), or it is stalled until its next turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from django.db import OperationalError, connection

if TYPE_CHECKING:
    from tests.dashboard.training.machine.actors import Actor

Kind = Literal["crash", "cut", "stall"]
KINDS: tuple[Kind, ...] = ("crash", "cut", "stall")
Fault = tuple[Kind, int] | None  # and at which point


class Killed(BaseException):
    """kill -9: nobody catches it, and nothing is cleaned up in the database."""


@dataclass(slots=True)
class Faults:
    """Of one actor."""

    kind: Kind | None = None
    points_left: int = 0  # until it happens
    is_dead: bool = False
    is_cut_off: bool = False  # every statement fails until somebody mends the network
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

    def roll_back_and_tell() -> None:
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

    wrapper._commit, wrapper._rollback = commit_with_points, roll_back_and_tell
    wrapper.create_cursor = create_cursor_with_points
    try:
        yield
    finally:
        del wrapper._commit, wrapper._rollback, wrapper.create_cursor
