"""A library's judgement, asked of a process of its own, within a time limit.

Math and puzzle graders can hang, fill the memory or take down their process on the
text a model writes, and a thread cannot be stopped. So they run in a child that the
kernel ends when its time is up; the next question starts a new one. The child gets
neither our environment nor our files' handles.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, get_args

Library = Literal["math_verify", "reasoning_gym"]
# Importing reasoning-gym takes 3 s on an idle core, and several times that on a
# machine that is busy starting everything else.
_START_SECONDS = 120.0
# The child's own alarm comes first; this is for a machine too busy to deliver it.
_GRACE_SECONDS = 5.0
_NO_TIME = "No time was left to check the answer. Try fewer completions at once."
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
_ROOT = Path(__file__).resolve().parents[2]


class JudgeFailed(Exception):
    """No judgement: the time was up, or the library could not be used."""


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """No question asked inside begins later, or is given more than what is left.

    A page must answer, and must not keep the judge from everybody else's.
    """
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _seconds_left() -> float:
    return max(0.0, min(_deadline.get() - time.monotonic(), threading.TIMEOUT_MAX))


def ask(
    library: Library, question: dict[str, Any], *, timeout_seconds: float
) -> dict[str, Any]:
    """The library's reply to the question, a JSON object.

    JudgeFailed when it takes longer than the timeout, or dies of the question.
    Any thread may ask; questions to one library wait for one another. Inside
    `limited_to`, JudgeFailed also when no time is left.
    """
    if not _locks[library].acquire(timeout=_seconds_left()):
        raise JudgeFailed(_NO_TIME)
    try:
        timeout_seconds = min(timeout_seconds, _seconds_left())
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
        judge = _start(library)
    try:
        return judge.ask(question, timeout_seconds)
    except JudgeFailed:
        _judges.pop(library).end()
        raise


def _start(library: Library) -> _Judge:
    if library in _judges:
        _judges[library].end()
    _judges[library] = judge = _Judge(library)
    return judge


class _Judge:
    """A running child and its pipes; a line of JSON each way."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.rewards.judge_process", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
            env=_environment(),
            # A Ctrl-C in the terminal is for the trainer, which ends the child.
            start_new_session=True,
        )
        self._is_ready = False

    def ask(self, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        if not self._is_ready:
            self._wait_until_ready()
        line = json.dumps({"timeout_seconds": timeout_seconds, "question": question})
        self._write(line.encode() + b"\n")
        reply = self._read_line(timeout_seconds + _GRACE_SECONDS)
        if reply is None:
            raise JudgeFailed(
                f"Checking the answer took longer than {timeout_seconds:g} s or more "
                "memory than allowed, so it was ended."
            )
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What a dead child did not read is of no use to anyone.
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def _wait_until_ready(self) -> None:
        greeting = self._read_line(_START_SECONDS)
        if greeting is None:
            raise JudgeFailed(
                f"The {self._library} grader did not start within "
                f"{_START_SECONDS:g} s. Is the package installed, and is there memory?"
            )
        problem = json.loads(greeting).get("problem")
        if problem:
            raise JudgeFailed(problem)
        self._is_ready = True

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise JudgeFailed(
                f"The {self._library} grader ended between two questions. Ask again; "
                "if it stays so, the machine is out of memory."
            ) from error

    def _read_line(self, timeout_seconds: float) -> bytes | None:
        """The next line; None at the end of the pipe or of the time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        # poll, because select refuses the high descriptors of a busy web server.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + timeout_seconds
        received = b""
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1_000):
                return None
            part = os.read(descriptor, 65_536)
            if not part:
                return None
            received += part
        return received


def _environment() -> dict[str, str]:
    """No secrets: only what Python needs to find the interpreter and this package."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    scratch = str(Path(tempfile.gettempdir()) / f"cohort-judge-{os.getuid()}")
    return kept | {
        "PYTHONPATH": str(_ROOT),
        # Not from the working directory, where anyone on this machine may put files.
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # reasoning-gym imports matplotlib, which keeps a font cache between starts.
        "MPLCONFIGDIR": scratch,
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


_judges: dict[Library, _Judge] = {}
_locks: dict[Library, threading.Lock] = {}


def _forget() -> None:
    """In a forked child: the pipes belong to the parent, the locks may be held."""
    _judges.clear()
    for library in get_args(Library):
        _locks[library] = threading.Lock()


def _end_all() -> None:
    while _judges:
        _judges.popitem()[1].end()


_forget()
os.register_at_fork(after_in_child=_forget)
atexit.register(_end_all)
