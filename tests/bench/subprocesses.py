"""Measuring in a process of its own: its memory is then no one else's.

Several such processes take turns, each asked for one step at a time, so that whatever
else the machine does falls on all of them. One that is not asked waits on a pipe.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from tests.bench.machine import tell
from tests.bench.work import Step

# What a process gives before its first step, once it has loaded everything.
READY = "ready"
# Seconds that it gets to end by itself.
_PATIENCE = 30
# Hands on what was found, and returns when more is asked for.
Give = Callable[[Any], None]


class Subprocess:
    """A function in another process that gives one step after the other."""

    def __init__(self, take: Callable[..., None], *args: Any, **options: Any) -> None:
        """
        Args:
            take: a module's function; its first argument is `Give`, called with READY
                and then with each step.
            args: further ones for it.
            options: for it.
        """
        self._name = take.__name__
        spawn = multiprocessing.get_context("spawn")
        self._pipe, far = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(far, take, args, options), daemon=True
        )
        self._process.start()
        far.close()  # so that its end is seen when the process ends

    def wait_until_ready(self) -> None:
        assert self._receive() == READY

    def step(self) -> Step:
        """The next step.

        Raises:
            RuntimeError: the process has failed, or was ended.
        """
        with contextlib.suppress(BrokenPipeError):  # `_receive` says why
            self._pipe.send(None)
        found = self._receive()
        assert isinstance(found, Step)
        return found

    def close(self) -> None:
        """End the process, which sees that no one asks it any more."""
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _receive(self) -> Any:
        try:
            is_good, found = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise RuntimeError(
                f"{self._name} ended with exit code {self._process.exitcode}; -9 means "
                "that the system had no memory left. Give it less to do."
            ) from None
        if not is_good:
            self._process.join()
            raise RuntimeError(f"{self._name} failed: {found}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def take_turns(
    sides: Sequence[Subprocess],
    *,
    name: str,
    num_steps: int,
    warmup: int,
    deadline: float | None = None,
) -> list[list[Step]]:
    """Each side's measured steps."""
    taken: list[list[Step]] = [[] for _ in sides]
    for number in range(warmup + num_steps):
        begin = time.monotonic()
        for side, steps in zip(sides, taken, strict=True):
            step = side.step()
            if number >= warmup:
                steps.append(step)
        spent = time.monotonic() - begin
        what = "warm-up" if number < warmup else f"step {number - warmup + 1}"
        tell(f"{name}: {what} of each, {spent:.1f} s")
        is_late = deadline is not None and time.monotonic() + spent > deadline
        if is_late and taken[0]:
            break
    return taken


def call_in_subprocess(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a module's function returns when it is called in a new process."""
    with Subprocess(_once, function, args, options) as process:
        return process._receive()


def _once(
    give: Give,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    give(function(*args, **options))


def _serve(
    pipe: Connection,
    take: Callable[..., None],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    def give(found: Any) -> None:
        pipe.send((True, found))
        try:
            pipe.recv()
        except EOFError:
            raise SystemExit(0) from None  # no one asks any more

    # what trainers print of their steps is no part of a table
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    try:
        take(give, *args, **options)
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
        raise  # its traceback goes to this process's stderr


def peak_bytes(device: str) -> int:
    """The most memory that this process has held: on the GPU, or resident."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        # unlike ru_maxrss, it begins again where the parent's memory was left behind
        (line,) = (line for line in status.read_text().splitlines() if "VmHWM" in line)
        return int(line.split()[1]) * 1_024
    unit = 1 if sys.platform == "darwin" else 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
