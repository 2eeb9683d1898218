"""What a process keeps of the models that judge, for a run or as long as it lives.

A run opens a session of its own, in which judges have a ledger on disk and classifiers
may be loaded. Outside of one, as on a page of the web half, what judges replied is
kept in memory for a while, and no model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar, cast

_MAX_WARNINGS = 20


class Closes(Protocol):
    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closes)


class Session:
    """Any thread may use it."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        lives: Path | None = None,
        rank: int = 0,
        num_processes: int = 1,
        is_run: bool = False,
    ) -> None:
        """
        Args:
            folder: of the run, for what should outlive this process.
            lives: folder of such folders, where each life of the run has its own.
            rank: this process's number among those of the run.
            num_processes: how many these are.
            is_run: whether models may be loaded, and connections kept.
        """
        self.folder = folder
        self.lives = lives
        self.rank = rank
        self.num_processes = num_processes
        self.is_run = is_run
        self._lock = Lock()
        self._kept: dict[Hashable, Closes] = {}
        self._is_closed = False
        self._known: set[str] = set()
        self._new: list[str] = []

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made under this key, made now if it was not."""
        with self._lock:
            assert not self._is_closed, "no scoring after the end of a run"
            if key not in self._kept:
                self._kept[key] = make()
            return cast(Kept, self._kept[key])

    def warn(self, text: str, *, about: str | None = None) -> None:
        """Note what a person should read, once, or once about something."""
        about = text if about is None else about
        with self._lock:
            if about not in self._known and len(self._known) < _MAX_WARNINGS:
                self._known.add(about)
                self._new.append(text)

    def take_warnings(self) -> list[str]:
        """Those that nobody has taken yet."""
        with self._lock:
            new, self._new = self._new, []
            return new

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            kept = list(self._kept.values())
        for each in reversed(kept):  # what was made later may use what was there
            each.close()


_current = Session()


def current_session() -> Session:
    return _current


@contextmanager
def open_session(
    folder: Path | None,
    *,
    lives: Path | None = None,
    rank: int = 0,
    num_processes: int = 1,
) -> Iterator[Session]:
    """The session of a run, for all threads of this process."""
    global _current
    outer = _current
    _current = Session(
        folder, lives=lives, rank=rank, num_processes=num_processes, is_run=True
    )
    try:
        yield _current
    finally:
        inner, _current = _current, outer
        inner.close()


def _forget() -> None:
    """In a forked child, threads are missing and locks may be held."""
    global _current
    _current = Session()


os.register_at_fork(after_in_child=_forget)
