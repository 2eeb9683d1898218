"""The end of a trainer: on a signal, with its supervisor, with all its threads."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For a process to end by itself: native code does not see Python's signal handlers,
# and a library may swallow Stopped.
GRACE_SECONDS = 3.0


class Stopped(BaseException):
    """SIGTERM or SIGINT; a BaseException, which `except Exception` does not catch."""


class StopSwitch:
    """Set by SIGTERM or SIGINT; a second one ends the process."""

    def __init__(self, *, exit_code: int) -> None:
        """Args: exit_code: of a process that ends at once."""
        self.is_set = False
        # Called once, by the guard if the process does not end in time.
        self.on_exit: Callable[[], None] = lambda: None
        self._on_exit_lock = threading.Lock()
        self._exit_code = exit_code
        self._is_at_once = False
        for number in SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.is_set = True
        if self._is_at_once:
            self._is_at_once = False  # a terminal's Ctrl-C may come as both signals
            raise Stopped

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Stopped inside at once, not only between steps.

        Any error inside once the switch is set becomes Stopped: it comes from another
        process of the run, which has stopped as well.
        """
        with self._guarded():
            try:
                self._is_at_once = True
                self._raise_if_set()
                yield
                self._raise_if_set()  # a library may have swallowed Stopped
            except Exception as error:
                self._raise_if_set(error)
                raise
            finally:
                self._is_at_once = False

    def run_on_exit(self, *, timeout: float = -1) -> None:
        if not self._on_exit_lock.acquire(timeout=timeout):
            return
        try:
            words, self.on_exit = self.on_exit, lambda: None
            words()
        finally:
            self._on_exit_lock.release()

    def _raise_if_set(self, cause: Exception | None = None) -> None:
        if self.is_set:
            raise Stopped from cause

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Have a thread end the process if it does not end after a signal.

        The wakeup descriptor of `signal` starts its timer. It also covers the cleanup
        after Stopped, which may hang.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        is_over = threading.Event()
        threading.Thread(
            target=self._guard, args=(read_end, is_over), daemon=True, name="stop-guard"
        ).start()
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            yield
            is_over.set()
        except Exception:
            is_over.set()
            raise
        finally:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            os.close(write_end)  # which ends a guard that was not woken

    def _guard(self, read_end: int, is_over: threading.Event) -> None:
        with os.fdopen(read_end, "rb", buffering=0) as notes:
            while note := notes.read(1):
                if note[0] in SIGNALS:
                    break
            else:
                return
        if not is_over.wait(GRACE_SECONDS):
            with suppress(Exception):
                self.run_on_exit(timeout=GRACE_SECONDS)
            os._exit(self._exit_code)


SAMPLING_THREAD = "sampling-ahead"
_GRACE_SECONDS = 5.0


def exit_process(code: int) -> NoReturn:
    """End the process with an exit code.

    A failed run may have a thread that still samples, for hours with a rollout server.
    Python would kill such a thread inside torch, which aborts the process and loses
    the exit code; so the process exits without Python's cleanup.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    sampling = [t for t in threading.enumerate() if t.name == SAMPLING_THREAD]
    for thread in sampling:
        thread.join(max(0.0, deadline - time.monotonic()))
    _flush_outputs()
    if any(thread.is_alive() for thread in sampling):
        os._exit(code)
    sys.exit(code)


def _flush_outputs() -> None:
    """Flush; a broken output must not replace the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Python would try once more, and end with a code of its own.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


EXIT_ORPHANED = 75
PIPE = "COHORT_PARENT_PIPE"
_PR_SET_PDEATHSIG = 1


def watch_parent() -> None:
    """End this process at once when the supervisor that started it is gone.

    The supervisor keeps the writing end of a pipe open and names the reading end in
    COHORT_PARENT_PIPE; the kernel closes it however the supervisor dies. The signal is
    a second string: it also reaches a process that is stuck in a long computation.
    """
    number = os.environ.get(PIPE)
    if not number:
        return
    if not number.isdigit():
        raise ValueError(
            f"COHORT_PARENT_PIPE must be the number of an open pipe; got {number!r}."
        )
    pipe = int(number)
    try:
        os.fstat(pipe)
    except OSError:
        raise ValueError(
            f"COHORT_PARENT_PIPE is {number}, which is not an open file descriptor. "
            "Pass the pipe to the trainer when starting it."
        ) from None
    die_with_parent()
    threading.Thread(target=_wait, args=(pipe,), daemon=True, name="parent").start()


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(EXIT_ORPHANED)
