"""Keeps services running: what ends is started again, with growing pauses."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dashboard.local.faults import LocalFault
from dashboard.local.processes import Service

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0  # after this long, a crash counts as the first again
PATIENCE_SECONDS = 14.0  # a run in training finishes its step and saves


@dataclass(slots=True)
class Watch:
    service: Service
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    restart_at: float | None = None


class Supervisor:
    """Starts and stops the processes; watches them and the servers under them."""

    def __init__(
        self,
        processes: Sequence[Service],
        *,
        servers: Sequence[Service],
        tell: Callable[[str], None],
    ) -> None:
        now = time.monotonic()
        self.processes = processes
        self.watches = [Watch(service, now) for service in (*servers, *processes)]
        self.tell = tell

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def look(self) -> None:
        """Start again what has ended and has waited long enough."""
        for watch in self.watches:
            child = watch.service.child
            if child is None or child.poll() is None:
                continue
            if watch.restart_at is None:
                self._plan_restart(watch, child.returncode)
            elif time.monotonic() >= watch.restart_at:
                self._restart(watch)

    def _restart(self, watch: Watch) -> None:
        watch.restart_at = None
        watch.started_at = time.monotonic()
        try:
            watch.service.start()
        except LocalFault as fault:
            # Its child has ended, so the next look plans another try.
            self.tell(str(fault))

    def _plan_restart(self, watch: Watch, returncode: int) -> None:
        now = time.monotonic()
        if now - watch.started_at > STEADY_SECONDS:
            watch.pause = FIRST_PAUSE_SECONDS
        watch.restart_at = now + watch.pause
        self.tell(
            f"The {watch.service.name} ended ({_describe(returncode)}) and starts "
            f"again in {watch.pause:.0f} s. Its log: {watch.service.log}"
        )
        watch.pause = min(2 * watch.pause, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """Ask all at the same time to end; make those that outstay their patience."""
        children = [process.child for process in self.processes if process.child]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for child in children:
            _outwait(child, deadline)


def _outwait(child: subprocess.Popen[bytes], deadline: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        child.wait(max(0.1, deadline - time.monotonic()))
    # Its own session: also what it started and left behind.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _describe(returncode: int) -> str:
    if returncode < 0:
        return signal.Signals(-returncode).name
    return f"exit {returncode}"
