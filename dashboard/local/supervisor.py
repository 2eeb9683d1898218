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
from dashboard.local.folders import tail
from dashboard.local.processes import Service

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
TELL_SECONDS = 10.0
STEADY_SECONDS = 60.0  # after this long, a crash counts as the first again
PATIENCE_SECONDS = 14.0  # a run in training finishes its step and saves


@dataclass(slots=True)
class Watch:
    service: Service
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    restart_at: float | None = None
    tell_at: float | None = None  # if a server that was started again is not ready


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
            process.spawn()

    def look(self) -> None:
        """Start again what has ended and has waited long enough."""
        for watch in self.watches:
            child = watch.service.child
            if child is not None and child.poll() is None:
                self._follow_restart(watch)
            elif watch.restart_at is None:
                self._plan_restart(watch)
            elif time.monotonic() >= watch.restart_at:
                self._restart(watch)

    def _restart(self, watch: Watch) -> None:
        watch.restart_at = None
        watch.started_at = time.monotonic()
        watch.tell_at = watch.started_at + TELL_SECONDS
        try:
            watch.service.spawn()
        except (LocalFault, OSError) as fault:
            # It has no child that lives, so the next look plans another try.
            self.tell(f"The {watch.service.name} could not be started: {fault}")

    def _follow_restart(self, watch: Watch) -> None:
        """Tell of a server that takes long to be ready, and when it is."""
        if watch.tell_at is None:
            return
        now = time.monotonic()
        seconds = now - watch.started_at
        if watch.service.is_ready():
            if seconds > TELL_SECONDS:
                self.tell(f"The {watch.service.name} is ready after {seconds:.0f} s.")
            watch.tell_at = None
        elif now >= watch.tell_at:
            self.tell(
                f"The {watch.service.name} is not ready {seconds:.0f} s after its "
                f"start. What it does is in its log: {watch.service.log}"
            )
            watch.tell_at = now + TELL_SECONDS

    def _plan_restart(self, watch: Watch) -> None:
        now = time.monotonic()
        if now - watch.started_at > STEADY_SECONDS:
            watch.pause = FIRST_PAUSE_SECONDS
        watch.restart_at = now + watch.pause
        log = watch.service.log
        is_stuck = watch.tell_at is not None  # it ended before it was ready again
        self.tell(
            f"The {watch.service.name} ended ({_describe(watch.service)}) and starts "
            f"again in {watch.pause:.0f} s. "
            + (f"Its log, {log}, ends:\n{tail(log)}" if is_stuck else f"Its log: {log}")
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


def _describe(service: Service) -> str:
    if service.child is None:
        return "not started"
    returncode = service.child.returncode
    if returncode < 0:
        return signal.Signals(-returncode).name
    return f"exit {returncode}"
