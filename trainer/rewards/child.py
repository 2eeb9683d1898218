"""A child process that answers lines of JSON and never outlives its parent.

It inherits neither environment nor file descriptors, and has its own session: a signal
to the trainer's process group is for the trainer, which ends its children. `Child` is
the parent's end of the pipes; the functions below it are the other end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]
# A dead process's pipe closes a moment before the kernel tells its exit code.
_REAP_SECONDS = 5.0


class NoReply(Exception):
    """The process is gone, or its time is up; the text says how, as in "it ended"."""


class TimedOut(NoReply):
    """Its time is up, but the process is there."""


class Child:
    """A running `python -m MODULE` and its pipes. For one thread at a time."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        interpreter: str = "",
        stderr: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        """
        Args:
            environment: what it needs beside the interpreter's own.
            interpreter: of another Python environment, which finds this one's code
                and none of its packages.
            stderr: takes what it says, which else no one hears.
        """
        own = {"PYTHONPATH": str(_ROOT)} if interpreter else {}
        self._process = subprocess.Popen(
            [interpreter or sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=tempfile.gettempdir(),
            env=_environment() | own | dict(environment or {}),
            start_new_session=True,
        )
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The code with which it ended; None: it runs."""
        return self._process.poll()

    def write(self, message: dict[str, Any]) -> None:
        """Send a line.

        Raises:
            NoReply: no one is there to read it.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NoReply(self._how_it_ended()) from None

    def read(self, *, timeout_seconds: float) -> dict[str, Any]:
        """Return the next line.

        Raises:
            NoReply: it did not come in time, or the process is gone.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        # poll, because select refuses the high descriptors of a busy web server.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + timeout_seconds
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1_000):
                raise TimedOut(f"it timed out after {timeout_seconds:g} s")
            part = os.read(descriptor, 65_536)
            if not part:
                raise NoReply(self._how_it_ended())
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def kill(self) -> None:
        """End it; a thread that waits for its reply learns that it is gone."""
        self._process.kill()

    def end(self) -> None:
        """End it, and let go of its pipes."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs on a disk
            self._process.wait(_REAP_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What a dead child did not read is of no use to anyone.
            with suppress(BrokenPipeError):
                pipe.close()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        if -code in (signal.SIGALRM, signal.SIGPROF):  # timers of its own
            return "it timed out"
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        return f"it ended with exit code {code}"


def _environment() -> dict[str, str]:
    """Return what Python needs to find its packages, and no secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    scratch = str(Path(tempfile.gettempdir()) / f"cohort-judge-{os.getuid()}")
    return kept | {
        # behind this package what the trainer itself finds packages by
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))
        ),
        # Not from the working directory, where anyone on this machine may put files.
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # reasoning-gym imports matplotlib, which keeps a font cache between starts.
        "MPLCONFIGDIR": scratch,
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


# In the process that answers


def take_over_stdout() -> int:
    """Keep the pipe for replies; what a library prints goes nowhere."""
    replies = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def send(replies: int, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


def questions() -> Iterator[dict[str, Any]]:
    """Yield what is asked until no one is left to ask, also within an answer."""
    threading.Thread(target=end_with_parent, daemon=True, name="asker").start()
    for line in sys.stdin.buffer:
        yield json.loads(line)


def end_with_parent(pipe: int = 0) -> None:
    """Have the kernel hang up the pipe, however the parent ends."""
    poll = select.poll()
    poll.register(pipe, 0)  # hang-ups are always reported
    poll.poll()
    os._exit(0)
