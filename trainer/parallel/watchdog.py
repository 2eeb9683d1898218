"""How the processes of a run learn why one of them ended.

A process that fails leaves its reason in the store where all of them met, and each
looks there once a second, in a thread of its own. Over gloo a broken connection tells a
process at once that another is gone. A GPU, though, waits in NCCL's kernel for as long
as it may, and whoever waits for the GPU cannot look.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from trainer.errors import Failure

_LOOK_SECONDS = 1.0
# For a process to end by itself once it could know, and for others to have looked.
_PATIENCE_SECONDS = 5.0
_CAUSE, _HEARD = "cause", "heard"


@dataclass(frozen=True)
class Member:
    """Where a process of the run is."""

    host: str
    pid: int


class Watchdog:
    """One process's eye on the others."""

    def __init__(self, store: Store, members: Sequence[Member], *, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._size = len(members)
        here = socket.gethostname()  # nothing is known of other machines
        self._pids = {n: m.pid for n, m in enumerate(members) if m.host == here}
        self._found: Failure | None = None
        self._is_found = threading.Event()
        self._is_awake = threading.Event()  # the main thread knows that the run fails
        self._is_over = threading.Event()

    @contextmanager
    def watching(self, end: Callable[[Failure], None]) -> Iterator[None]:
        """Look after the others inside.

        Where one fails and this process does not notice by itself, `end` is called, in
        another thread than the one that is stuck; it must end the process.
        """
        watch = threading.Thread(
            target=self._watch, args=(end,), daemon=True, name="watchdog"
        )
        watch.start()
        try:
            yield
        finally:
            self._is_awake.set()
            self._is_over.set()
            watch.join(_PATIENCE_SECONDS)

    def report(self, failure: Failure) -> None:
        """Leave the others word of why this process ends."""
        self._is_awake.set()
        self._is_over.set()
        word = json.dumps([self._rank, failure.sentence, failure.details])
        try:
            self._store.compare_set(_CAUSE, "", word)  # the first one's stands
            if self._rank == 0:
                self._wait_till_heard()
        except dist.DistError:
            return  # the store went with the first process

    def find(self) -> Failure | None:
        """What another process left, or which one went without a word."""
        self._is_awake.set()
        self._is_found.wait(_PATIENCE_SECONDS)
        return self._found

    def _wait_till_heard(self) -> None:
        """The store goes with the first process."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._store.add(_HEARD, 0) >= self._size - 1:
                return
            time.sleep(_LOOK_SECONDS / 10)

    def _watch(self, end: Callable[[Failure], None]) -> None:
        # a connection for each thread
        store: Store = self._store.clone()  # type: ignore[attr-defined]  # no stub
        while not self._is_over.wait(_LOOK_SECONDS):
            self._found = self._left_in(store) or self._gone()
            if self._found is not None:
                self._is_found.set()
                if not self._is_awake.wait(_PATIENCE_SECONDS):
                    end(self._found)
                return

    def _left_in(self, store: Store) -> Failure | None:
        try:
            if not store.check([_CAUSE]):
                return None
            rank, sentence, details = json.loads(store.get(_CAUSE))
            store.add(_HEARD, 1)
        except dist.DistError:
            return None  # the store went with the first process
        return Failure(f"Process {rank} of {self._size} failed: {sentence}", details)

    def _gone(self) -> Failure | None:
        for rank, pid in self._pids.items():
            if not _is_there(pid):
                return Failure(
                    f"Process {rank} of {self._size} was killed, by a person or by the "
                    "kernel when memory ran out. Resume from the last checkpoint."
                )
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
