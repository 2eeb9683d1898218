"""A request to stop: heeded at once while a run loads, between steps while it trains.

What has not begun has nothing to save, and may take long: an import, a hub, the weights
of a large model, another process that is waited for.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For a process to end by itself. Code that is not Python's hears of no signal, and a
# library may take Stopped for a fault of its own.
GRACE_SECONDS = 3.0


class Stopped(BaseException):
    """SIGTERM or SIGINT; nothing on the way may take it for an error of its own."""


class StopSwitch:
    """Set by SIGTERM or SIGINT; a second one ends the process."""

    def __init__(self, *, exit_code: int) -> None:
        """
        Args:
            exit_code: of a process that ends at once.
        """
        self.is_set = False
        # Said once, be it by the guard of a process that does not end in time.
        self.last_words: Callable[[], None] = lambda: None
        self._saying = threading.Lock()
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
        """Inside, the switch raises Stopped, and at its ends where it is set.

        Whatever fails inside once it is set is Stopped as well: another process of the
        run, which was told too, has gone.
        """
        with self._guarded():
            try:
                self._is_at_once = True
                self._heed()
                yield
                self._heed()  # a library may have taken Stopped for its own
            except Exception as error:
                self._heed(error)
                raise
            finally:
                self._is_at_once = False

    def say_last_words(self, *, timeout: float = -1) -> None:
        if not self._saying.acquire(timeout=timeout):
            return
        try:
            words, self.last_words = self.last_words, lambda: None
            words()
        finally:
            self._saying.release()

    def _heed(self, cause: Exception | None = None) -> None:
        if self.is_set:
            raise Stopped from cause

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let a thread see to the end, which Python's own note of a signal wakes.

        It looks on after Stopped was raised: letting go of things may hang as well.
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
                self.say_last_words(timeout=GRACE_SECONDS)
            os._exit(self._exit_code)
