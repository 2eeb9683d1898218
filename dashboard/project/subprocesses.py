"""Subprocesses: for native code that reads untrusted files, and for servers.

A C++ library may crash its whole process over one wrong byte of a file. Here that is a
child with limits of memory and time: `serve` runs in it, `call` is the other end.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dashboard.project.environment import ROOT

MAX_BYTES = 4 * 2**30  # of addresses, of which a gigabyte is mapped for nothing
MAX_SECONDS = 60  # of computing, from one answer to the next
LOOK_SECONDS = 10.0  # in all, where a page waits for the answers
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildFailed(Exception):
    """The child ended before it had answered everything; the message says how."""


def call(
    module: str, *question: Any, seconds: float | None = None
) -> Generator[Any, None, None]:
    """Yields the results of `serve` in that module; ChildFailed if it ends early.

    The child is gone when the iterator is closed, or `seconds` after its start.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tempfile.gettempdir(),
        env=bare_environment(),
    ) as child:
        assert child.stdin
        assert child.stdout
        alarm = threading.Timer(seconds or 0.0, child.kill)
        try:
            if seconds is not None:
                alarm.start()
            with suppress(BrokenPipeError):
                child.stdin.write(pickle.dumps(question))
                child.stdin.close()
            while True:
                try:
                    reply = pickle.load(child.stdout)  # nosec B301 # noqa: S301  # from our own code
                except (EOFError, pickle.UnpicklingError):
                    break
                yield reply
            if code := child.wait():
                if alarm.finished.is_set():
                    raise ChildFailed(f"it timed out after {seconds} s")
                raise ChildFailed(_how(code))
        finally:
            alarm.cancel()
            child.kill()


def serve(answer: Callable[..., Iterator[Any]]) -> None:
    """Answer requests from stdin, one result at a time on stdout."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    _allow_time()
    question = pickle.load(sys.stdin.buffer)  # nosec B301 # noqa: S301  # from our own code
    for item in answer(*question):
        pickle.dump(item, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        _allow_time()


def bare_environment() -> dict[str, str]:
    """Contains neither secrets nor addresses."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(ROOT),
        # Not from the working directory, where anyone on this machine may put files.
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _allow_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + MAX_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _how(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"it timed out after {MAX_SECONDS} s"
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it exited with code {code}"


def start_child(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    group: int | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a command in its own session, with its output in a log.

    In its own session, Ctrl-C in the terminal reaches only `up`, which stops its
    children in order. If `up` is killed, the kernel sends them `death_signal`.
    """

    def die_with_parent() -> None:
        if _libc is not None:
            _libc.prctl(1, int(death_signal), 0, 0, 0)  # PR_SET_PDEATHSIG

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            user=user,
            group=group,
            extra_groups=[] if user is not None else None,
            start_new_session=True,
            # Runs between fork and exec: safe here, `up` has a single thread.
            preexec_fn=die_with_parent,
        )


def end_child(
    child: subprocess.Popen[bytes],
    *,
    with_signal: signal.Signals = signal.SIGTERM,
    patience_seconds: float = 10,
) -> None:
    """Send SIGTERM; kill it when it takes too long."""
    if child.poll() is None:
        child.send_signal(with_signal)
    try:
        child.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
