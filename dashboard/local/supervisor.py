"""Starts Cohort's processes, restarts what ends with growing pauses, stops them."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Protocol

from dashboard.local.data_folder import LocalFault, tail
from dashboard.project.environment import ROOT
from dashboard.project.subprocesses import start_child

BIGGEST_LOG_BYTES = 10 * 1024**2
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
REPORT_SECONDS = 10.0
STEADY_SECONDS = 60.0  # after this long, a crash counts as the first again
PATIENCE_SECONDS = 14.0  # a run in training finishes its step and saves
START_SECONDS = 180  # of a process that lives; a slow machine loads for a minute
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Service(Protocol):
    """Something that is started, watched and stopped."""

    name: str
    log: Path
    child: subprocess.Popen[bytes] | None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it, without waiting until it is ready."""

    def is_ready(self) -> bool: ...


class Process:
    """A Python process of Cohort."""

    def __init__(self, name: str, arguments: Sequence[str], *, data: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.data = data
        self.log = data / "logs" / f"{name.replace(' ', '-')}.log"
        self.child: subprocess.Popen[bytes] | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        if self.log.exists() and self.log.stat().st_size > BIGGEST_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        os.chdir(ROOT)
        self.child = start_child(
            [sys.executable, "-m", *self.arguments],
            log=self.log,
            env={**os.environ, "COHORT_DATA": str(self.data), "PYTHONUNBUFFERED": "1"},
            death_signal=signal.SIGTERM,
        )
        return self.child

    def is_ready(self) -> bool:
        return True  # no time to wait for it


def web(*, data: Path, port: int) -> Process:
    arguments = ["uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--no-access-log", "--lifespan", "off"]
    arguments += ["--http", "dashboard.web.connections:LimitedRequests"]
    # Compressing each frame for each page doubles the CPU use of 200 pages.
    arguments += ["--ws-per-message-deflate", "false"]
    # Pages send a few bytes.
    arguments += ["--ws-max-size", "16384"]
    # An open page's socket would otherwise keep the process from ending.
    arguments += ["--timeout-graceful-shutdown", "2"]
    return Process("web", arguments, data=data)


def worker(queue: str, *, data: Path, num_slots: int) -> Process:
    arguments = ["celery", "--app", "dashboard.celery:app", "worker"]
    arguments += ["--queues", queue, "--hostname", f"{queue}@%h"]
    arguments += ["--concurrency", str(num_slots), "--loglevel", "INFO"]
    # Neither is of use to workers that share nothing but the broker.
    arguments += ["--without-gossip", "--without-mingle"]
    return Process(f"{queue} worker", arguments, data=data)


def beat(*, data: Path) -> Process:
    arguments = ["celery", "--app", "dashboard.celery:app", "beat"]
    arguments += ["--schedule", str(data / "beat-schedule"), "--pidfile", ""]
    return Process("beat", arguments, data=data)


def all_processes(*, data: Path, port: int) -> list[Process]:
    return [
        web(data=data, port=port),
        # An import, a download, a rescoring and blocks of completions may take long,
        # one of each at a time; what dispatches runs must not wait.
        worker("default", data=data, num_slots=5),
        beat(data=data),
        worker("training", data=data, num_slots=1),
    ]


@dataclass(slots=True)
class WatchedService:
    service: Service
    started_at: float
    pause: float = FIRST_PAUSE_SECONDS
    restart_at: float | None = None
    report_at: float | None = None  # if a server that was started again is not ready


class Supervisor:
    """Starts and stops the processes; watches them and the servers under them."""

    def __init__(
        self,
        processes: Sequence[Service],
        *,
        servers: Sequence[Service],
        report: Callable[[str], None],
    ) -> None:
        now = time.monotonic()
        self.processes = processes
        self.watches = [
            WatchedService(service, now) for service in (*servers, *processes)
        ]
        self.report = report

    def start(self) -> None:
        for process in self.processes:
            process.spawn()

    def check(self) -> None:
        """Start again what has ended and has waited long enough."""
        for watch in self.watches:
            child = watch.service.child
            if child is not None and child.poll() is None:
                self._follow_restart(watch)
            elif watch.restart_at is None:
                self._plan_restart(watch)
            elif time.monotonic() >= watch.restart_at:
                watch.restart_at = None
                watch.started_at = time.monotonic()
                watch.report_at = watch.started_at + REPORT_SECONDS
                try:
                    watch.service.spawn()
                except (LocalFault, OSError) as fault:
                    # It has no running child, so the next check plans another attempt.
                    self.report(f"The {watch.service.name} failed to start: {fault}")

    def _follow_restart(self, watch: WatchedService) -> None:
        """Report a server that takes long to be ready, and when it is ready."""
        if watch.report_at is None:
            return
        now = time.monotonic()
        seconds = now - watch.started_at
        if watch.service.is_ready():
            if seconds > REPORT_SECONDS:
                self.report(f"The {watch.service.name} is ready after {seconds:.0f} s.")
            watch.report_at = None
        elif now >= watch.report_at:
            self.report(
                f"The {watch.service.name} is not ready after {seconds:.0f} s. "
                f"Log: {watch.service.log}"
            )
            watch.report_at = now + REPORT_SECONDS

    def _plan_restart(self, watch: WatchedService) -> None:
        now = time.monotonic()
        if now - watch.started_at > STEADY_SECONDS:
            watch.pause = FIRST_PAUSE_SECONDS
        watch.restart_at = now + watch.pause
        log = watch.service.log
        is_stuck = watch.report_at is not None  # it ended before it was ready again
        self.report(
            f"The {watch.service.name} exited ({_describe(watch.service)}). "
            f"Restarting in {watch.pause:.0f} s. "
            + (f"Log: {log}. Last lines:\n{tail(log)}" if is_stuck else f"Log: {log}")
        )
        watch.pause = min(2 * watch.pause, LONGEST_PAUSE_SECONDS)

    def stop(self) -> None:
        """Send SIGTERM to all at once; kill those that take too long."""
        children = [process.child for process in self.processes if process.child]
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, deadline - time.monotonic()))
            # The whole session: includes orphaned children.
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


def wait_until_served(web: Service, *, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if web.child is not None and web.child.poll() is not None:
            break
        if _is_ready(port):
            return
        time.sleep(0.1)
    raise LocalFault(
        f"The web server failed to listen on port {port}. Log: {web.log}. Last "
        f"lines:\n{tail(web.log)}"
    )


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Stop(BaseException):
    """Requested to stop.

    Not an Exception, so that `except Exception` does not catch it.
    """


def stop_on_signals() -> None:
    """Ctrl-C, SIGTERM and a closed terminal all mean: stop in order."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stop

    for name in STOPPING:
        signal.signal(name, stop)


def ignore_signals() -> None:
    """While stopping: a second Ctrl-C would leave processes behind."""
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)
