"""The sandboxes of this process: one per team and set of packages, and few in total.

Calls of a team wait for one another, but not for another team's.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from trainer.rewards.judge import seconds_left
from trainer.rewards.sandbox.levels import Level
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.slot import (
    START_SECONDS,
    Answer,
    Slot,
    SlotLost,
    find_sandbox,
)

MAX_SLOTS = 8
MAX_CALLS = 1_000  # of one sandbox, before a new one takes its place
# With less a call could not even begin; and nothing is ended for it.
LEAST_SECONDS = 0.05
# How long a sandbox may go on for its team while others wait for one.
_TURN_SECONDS = 1.0

_owner: ContextVar[str] = ContextVar("owner", default="")


class SandboxFailed(Exception):
    """No answer, and not by the code's fault; the text is for the user."""


@contextmanager
def asking_for(owner: str) -> Iterator[None]:
    """Calls made inside go to this owner's sandbox."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def ask(
    kind: str,
    questions: Sequence[Any],
    limits: Limits,
    *,
    packages: tuple[str, ...] = (),
) -> Answer:
    """Return the answer to a call, from the caller's sandbox with these packages
    loaded.

    Inside `limited_to`, waiting and starting take from what is left.

    Raises:
        SandboxFailed: there is no sandbox, no time, or it was lost twice.
    """
    owner = _owner.get()
    if packages:
        # One of its own: functions and code that need none neither wait for an import
        # nor fork its memory.
        owner = f"{owner} with {', '.join(packages)}"
    return _pool.ask(owner, kind, questions, limits, packages)


@dataclass(eq=False)
class _Place:
    """Room for one owner's sandbox."""

    slot: Slot | None = None
    is_busy: bool = True
    since: float = 0.0


class _Pool:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._places: dict[str, _Place] = {}
        self._waiting: deque[object] = deque()  # those whose owner has no place

    def ask(
        self,
        owner: str,
        kind: str,
        questions: Sequence[Any],
        limits: Limits,
        packages: tuple[str, ...] = (),
    ) -> Answer:
        _require_time()
        place = self._take(owner)
        try:
            return self._ask(place, packages, kind, questions, limits)
        finally:
            with self._changed:
                place.is_busy = False
                had_its_turn = time.monotonic() - place.since > _TURN_SECONDS
                if self._waiting and had_its_turn and self._places.get(owner) is place:
                    del self._places[owner]
                    if place.slot is not None:
                        place.slot.end()
                self._changed.notify_all()

    def end_all(self) -> None:
        with self._changed:
            places = list(self._places.values())
            self._places.clear()
        for place in places:
            if place.slot is not None:
                place.slot.end()

    def _ask(
        self,
        place: _Place,
        packages: tuple[str, ...],
        kind: str,
        questions: Sequence[Any],
        limits: Limits,
    ) -> Answer:
        loss = ""
        for _ in range(2):
            _require_time()
            try:
                slot = _running(place, packages)
                wall_seconds = min(limits.wall_seconds, _require_time())
                return slot.ask(
                    kind, questions, replace(limits, wall_seconds=wall_seconds)
                )
            except SlotLost as lost:
                loss = str(lost)
        raise SandboxFailed(
            f"The sandbox for reward code ended twice: {loss}. Check the machine's "
            "free memory."
        )

    def _take(self, owner: str) -> _Place:
        ticket = object()
        deadline = time.monotonic() + seconds_left()
        with self._changed:
            try:
                while not self._is_free(owner, ticket):
                    if owner in self._places:  # another thread of the owner's got it
                        self._leave_queue(ticket)
                    elif ticket not in self._waiting:
                        self._waiting.append(ticket)
                    seconds = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                    if seconds <= 0 or not self._changed.wait(seconds):
                        raise SandboxFailed(
                            "The sandbox for reward code is busy with other "
                            "completions. Try again in a moment, or with fewer "
                            "completions."
                        )
            finally:
                # Also when interrupted: no one else would be let past it.
                self._leave_queue(ticket)
            place = self._places.setdefault(owner, _Place(since=time.monotonic()))
            place.is_busy = True
            return place

    def _is_free(self, owner: str, ticket: object) -> bool:
        """Say whether the owner's place, or room for a new one, is there; lock held."""
        place = self._places.get(owner)
        if place is not None:
            return not place.is_busy
        if self._waiting and self._waiting[0] is not ticket:
            return False
        return len(self._places) < MAX_SLOTS or self._evict()

    def _evict(self) -> bool:
        for owner, place in self._places.items():
            if not place.is_busy:
                del self._places[owner]
                if place.slot is not None:
                    place.slot.end()
                return True
        return False

    def _leave_queue(self, ticket: object) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)


def _running(place: _Place, packages: tuple[str, ...]) -> Slot:
    slot = place.slot
    if slot is not None and (slot.num_calls >= MAX_CALLS or not slot.is_alive()):
        slot.end()
        slot = None
    if slot is None:
        level = sandbox_level()
        slot = Slot(
            level,
            packages=packages,
            timeout_seconds=min(START_SECONDS, _require_time()),
        )
    place.slot = slot
    return slot


def sandbox_level() -> Level:
    """Return the level that calls run at.

    Raises:
        SandboxFailed: this machine has none, or there is no time to find out.
    """
    sandbox = find_sandbox(timeout_seconds=min(4 * START_SECONDS, _require_time()))
    if sandbox.level is None:
        raise SandboxFailed(sandbox.sentence)
    return sandbox.level


def _require_time() -> float:
    seconds = seconds_left()
    if seconds < LEAST_SECONDS:
        raise SandboxFailed(
            "No time was left to run reward code. Score fewer completions at once."
        )
    return seconds


_pool = _Pool()


def _forget() -> None:
    """Forget all in a forked child: the pipes belong to the parent, the locks may be
    held.
    """
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _pool.end_all())
