"""Starting a process that does not outlive this one."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent(sig: signal.Signals) -> None:
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)


def start_child(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    group: int | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, writing to a log.

    Its own session: Ctrl-C in the terminal then reaches only `up`, which stops its
    children in order. Should `up` be killed, the kernel sends them `death_signal`.
    """
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
            preexec_fn=lambda: _die_with_parent(death_signal),
        )


def end_child(
    child: subprocess.Popen[bytes],
    *,
    with_signal: signal.Signals = signal.SIGTERM,
    patience_seconds: float = 10,
) -> None:
    """Ask it to end; past its patience, make it."""
    if child.poll() is None:
        child.send_signal(with_signal)
    try:
        child.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
