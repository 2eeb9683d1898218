"""Grading by a library in a child process, with a time limit.

Math and puzzle graders can hang, exhaust memory or crash on the text of a model, and a
thread cannot be stopped. So they run in a child process that the kernel ends at its
time limit; the next question starts a new one.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from trainer.rewards.child import Child, NoReply

Library = Literal["math_verify", "py3langid", "reasoning_gym"]
# Importing reasoning-gym takes 3 s on an idle core, and several times that on a
# machine that is busy starting everything else.
START_SECONDS = 120.0
# The child's own alarm comes first; this is for a machine too busy to deliver it.
GRACE_SECONDS = 5.0
TIMED_OUT = "Scoring timed out. Score fewer completions at once."
_NO_TIME = (
    "Checking the answer timed out before it started. Score fewer completions at once."
)
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


class JudgeFailed(Exception):
    """No judgement: the time was up, or the library could not be used."""


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """Let no question asked inside begin later, or take more than what is left.

    A page must answer, and must not keep the judge from everybody else's.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_limit() -> float:
    """When the time that `limited_to` gives is up, by `time.monotonic`."""
    return _deadline.get()


def seconds_left() -> float:
    """Return what `limited_to` leaves; outside of it, as long as a lock can be waited
    for.
    """
    return max(0.0, min(_deadline.get() - time.monotonic(), threading.TIMEOUT_MAX))


def ask(
    library: Library, question: dict[str, Any], *, timeout_seconds: float
) -> dict[str, Any]:
    """Return the library's reply to the question, a JSON object.

    JudgeFailed when it takes longer than the timeout, or dies of the question.
    Any thread may ask; questions to one library wait for one another. Inside
    `limited_to`, JudgeFailed also when no time is left.
    """
    if not _locks[library].acquire(timeout=seconds_left()):
        raise JudgeFailed(_NO_TIME)
    try:
        timeout_seconds = min(timeout_seconds, seconds_left())
        if timeout_seconds <= 0:
            raise JudgeFailed(_NO_TIME)
        return _ask(library, question, timeout_seconds)
    finally:
        _locks[library].release()


def _ask(
    library: Library, question: dict[str, Any], timeout_seconds: float
) -> dict[str, Any]:
    judge = _judges.get(library)
    if judge is None or not judge.is_alive():
        if library in _judges:
            _judges[library].end()
        _judges[library] = judge = _Judge(library)
    try:
        return judge.ask(question, timeout_seconds)
    except JudgeFailed:
        _judges.pop(library).end()
        raise


class _Judge(Child):
    """A running child that knows one library."""

    def __init__(self, library: Library) -> None:
        super().__init__("trainer.rewards.judge_process", library)
        self._library = library
        self._is_ready = False

    def ask(self, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        if not self._is_ready:
            self._wait_until_ready()
        try:
            self.write({"timeout_seconds": timeout_seconds, "question": question})
        except NoReply as error:
            raise JudgeFailed(
                f"The {self._library} grader exited between two answers. Try again; "
                "if it happens again, check the machine's memory."
            ) from error
        try:
            return self.read(timeout_seconds=timeout_seconds + GRACE_SECONDS)
        except NoReply as error:
            raise JudgeFailed(
                f"Checking the answer exceeded {timeout_seconds:g} s or the memory "
                "limit and was stopped."
            ) from error

    def _wait_until_ready(self) -> None:
        try:
            greeting = self.read(timeout_seconds=START_SECONDS)
        except NoReply as error:
            raise JudgeFailed(
                f"The {self._library} grader did not start within {START_SECONDS:g} "
                "s. Check that the package is installed and that memory is free."
            ) from error
        problem = greeting.get("problem")
        if problem:
            raise JudgeFailed(problem)
        self._is_ready = True


_judges: dict[Library, _Judge] = {}
_locks: dict[Library, threading.Lock] = {}


def _forget() -> None:
    """Forget all in a forked child: the pipes belong to the parent, the locks may be
    held.
    """
    _judges.clear()
    for library in get_args(Library):
        _locks[library] = threading.Lock()


def _end_all() -> None:
    while _judges:
        _judges.popitem()[1].end()


_forget()
os.register_at_fork(after_in_child=_forget)
atexit.register(_end_all)
