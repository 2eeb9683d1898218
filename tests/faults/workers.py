"""Real workers, and the trainers they start."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.faults.tiny import ROOT

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], *, what: str, seconds: float = 90) -> T:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"Not within {seconds:g} s: {what}")


class Worker:
    """A Celery worker, as `manage.py up` starts it."""

    def __init__(
        self,
        name: str,
        *,
        env: Mapping[str, str],
        log: Path,
        queue: str = "training",
        more: Sequence[str] = (),
        root: Path = ROOT,
    ) -> None:
        self.log = log
        command = [sys.executable, "-m", "celery", "--app", "dashboard.celery:app"]
        command += ["worker", "--queues", queue, "--hostname", f"{name}@%h"]
        command += ["--concurrency", "1", "--loglevel", "INFO"]
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [*command, "--without-gossip", "--without-mingle", *more],
                cwd=root,
                env=dict(env),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def pool_process(self) -> int:
        """The process that runs tasks; its parent waits for messages."""
        pid = self.child.pid
        [child] = children(pid)
        return child

    def kill(self) -> None:
        """kill -9 of the worker only."""
        self.child.kill()
        self.child.wait()

    def kill_all(self) -> None:
        """kill -9 of the worker and its pool processes."""
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def terminate(self, *, timeout_seconds: float = 30) -> None:
        if self.child.poll() is None:
            self.child.terminate()
        try:
            self.child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def beat(*, env: Mapping[str, str], folder: Path) -> Worker:
    """A default worker with beat, which wakes workers and reaps runs."""
    more = ["--beat", "--schedule", str(folder / "schedule")]
    log = folder / "beat.log"
    return Worker("default", env=env, log=log, queue="default", more=more)


def trainer_pid(data: Path, run_id: int, *, attempt: int) -> int | None:
    """From the supervisor's log."""
    log = data / "runs" / str(run_id) / "epochs" / str(attempt) / "supervisor.log"
    text = log.read_text() if log.exists() else ""
    match = re.search(r"Started the trainer as process (\d+)", text)
    return int(match[1]) if match else None


def children(pid: int) -> list[int]:
    """Child processes, oldest first."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_alive(pid: int) -> bool:
    """False for a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"
