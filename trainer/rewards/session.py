"""State of judges and reward models that a process shares between scorings.

A run opens a session: judges have a ledger on disk, and classifiers may be loaded.
Without a session, as in the dashboard, replies are cached in memory and no model is
loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar, cast, runtime_checkable

_MAX_WARNINGS = 20


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closes)


class Session:
    """Any thread may use it."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        attempts: Path | None = None,
        rank: int = 0,
        num_processes: int = 1,
        is_run: bool = False,
    ) -> None:
        """Args: folder: of the run, for what should outlive this process. attempts:
        folder with such a folder for each attempt of the run. rank: this process's
        number among those of the run. num_processes: how many these are. is_run:
        whether models may be loaded, and connections kept.
        """
        self.folder = folder
        self.attempts = attempts
        self.rank = rank
        self.num_processes = num_processes
        self.is_run = is_run
        self._lock = Lock()
        self._kept: dict[Hashable, Closes] = {}
        self._is_closed = False
        self._known: set[str] = set()
        self._new: list[str] = []

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return the object of a key, made on first use."""
        with self._lock:
            assert not self._is_closed, "no scoring after the end of a run"
            if key not in self._kept:
                self._kept[key] = make()
            return cast(Kept, self._kept[key])

    def warn(self, text: str, *, about: str | None = None) -> None:
        """Add a warning, unless there was one about the same."""
        about = text if about is None else about
        with self._lock:
            if about not in self._known and len(self._known) < _MAX_WARNINGS:
                self._known.add(about)
                self._new.append(text)

    def take_warnings(self) -> list[str]:
        """Return new warnings, each once."""
        with self._lock:
            new, self._new = self._new, []
            return new

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept = list(self._kept.values())
        for resource in reversed(kept):  # what was made later may use what was there
            resource.close()


_current = Session()


def current_session() -> Session:
    return _current


@contextmanager
def open_session(
    folder: Path | None,
    *,
    attempts: Path | None = None,
    rank: int = 0,
    num_processes: int = 1,
) -> Iterator[Session]:
    """Open the session of a run, for all threads of this process."""
    global _current
    outer = _current
    _current = Session(
        folder, attempts=attempts, rank=rank, num_processes=num_processes, is_run=True
    )
    try:
        yield _current
    finally:
        inner, _current = _current, outer
        inner.close()


def _forget() -> None:
    """Forget all in a forked child: threads are missing and locks may be held."""
    global _current
    _current = Session()


os.register_at_fork(after_in_child=_forget)
