"""The processes that `up` runs, each with its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dashboard.environment import ROOT
from dashboard.local.child import start_child

BIGGEST_LOG_BYTES = 10 * 1024**2


class Service(Protocol):
    """Something that is started, watched and stopped."""

    name: str
    log: Path
    child: subprocess.Popen[bytes] | None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it, without waiting until it is ready."""

    def is_ready(self) -> bool: ...


class Process:
    """One Python process of Cohort."""

    def __init__(self, name: str, arguments: Sequence[str], *, data: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.data = data
        self.log = data / "logs" / f"{name.replace(' ', '-')}.log"
        self.child: subprocess.Popen[bytes] | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        _rotate(self.log)
        os.chdir(ROOT)
        self.child = start_child(
            [sys.executable, "-m", *self.arguments],
            log=self.log,
            env={**os.environ, "COHORT_DATA": str(self.data), "PYTHONUNBUFFERED": "1"},
            death_signal=signal.SIGTERM,
        )
        return self.child

    def is_ready(self) -> bool:
        return True  # nobody waits for it


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > BIGGEST_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def web(*, data: Path, port: int) -> Process:
    arguments = ["uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--no-access-log", "--lifespan", "off"]
    arguments += ["--http", "dashboard.connections:LimitedRequests"]
    # Packing each frame for each page doubles what 200 pages take of a core.
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
