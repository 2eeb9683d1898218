"""Writing the event log."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Self

from pydantic_core import PydanticSerializationError

from trainer.console import print_error
from trainer.disk import (
    RESERVED_BYTES,
    DiskFull,
    disk_too_small,
    free_bytes,
    full_disk,
    is_disk_full,
)
from trainer.events import Event, parse_event
from trainer.host import tick
from trainer.rewards.rule import replace_surrogates

NAME = "events.jsonl"
PURPOSE = "the output of the run"


class EventLog:
    """Appends numbered events to a file; after `flush` they are on disk.

    Events are buffered until then, so a reader sees all of a step or nothing.
    Thread-safe: the thread that watches the other processes adds why this one ends.
    """

    def __init__(
        self, path: Path, *, attempt: int, defers_errors: bool = False
    ) -> None:
        """Args: defers_errors: whether only `require_disk_space` raises on a full disk,
        so that no process fails in the middle of a step that others wait for.
        """
        self._folder = path.parent
        self._defers_errors = defers_errors
        self._lack: DiskFull | None = None
        self._file = path.open("xb", buffering=0)
        self._attempt = attempt
        self._line = 0
        self.step = 0  # of the last event
        self._waiting: list[bytes] = []
        self._unwritten = b""  # that a full disk did not take
        self._lock = threading.Lock()

    def add(self, kind: type[Event], *, step: int, **fields: Any) -> None:
        with self._lock:
            self._line += 1
            self.step = step
            event = kind(
                line=self._line,
                attempt=self._attempt,
                time=time.time(),
                step=step,
                **fields,
            )
            self._waiting.append(_as_json(event) + b"\n")

    def flush(self) -> None:
        """Write the events; the next call goes on where a full disk took a part."""
        tick()
        with self._lock:
            self._unwritten += b"".join(self._waiting)
            self._waiting.clear()
            if not self._unwritten:
                return
            try:
                self._write()
            except OSError as error:
                if not (self._defers_errors and is_disk_full(error)):
                    raise
                self._lack = output_disk_full(self._folder, error)
            else:
                self._lack = None

    def is_written(self) -> bool:
        """Return whether the disk has taken all of it by now."""
        try:
            self.flush()
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        return self._lack is None

    def require_disk_space(self) -> None:
        """
        Raises:
            DiskFull: the disk did not take what the last flush had to write, or half
                of what must stay free is used. A resume waits until all of it is free.
        """
        if self._lack is not None:
            raise self._lack
        if free_bytes(self._folder) < RESERVED_BYTES // 2:
            raise disk_too_small(self._folder, RESERVED_BYTES, purpose=PURPOSE)

    def _write(self) -> None:
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if not self.is_written():
                print_error("The end of the log is missing: the disk is full.")
        finally:
            self._file.close()


def _as_json(event: Event) -> bytes:
    try:
        return event.model_dump_json().encode()
    except PydanticSerializationError:  # half a character in a text from outside
        text = replace_surrogates(json.dumps(event.model_dump(), ensure_ascii=False))
        return type(event).model_validate_json(text).model_dump_json().encode()


class UnwrittenLog(EventLog):
    """The log of a process beside the one that writes the run's log."""

    def __init__(self) -> None:
        self.step = 0

    def add(self, kind: type[Event], *, step: int, **fields: Any) -> None:
        self.step = step

    def flush(self) -> None:
        """Do nothing: no event was held back."""

    def is_written(self) -> bool:
        return True

    def require_disk_space(self) -> None:
        """Do nothing: it needs none."""

    def __exit__(self, *raised: object) -> None:
        """Do nothing: no file is open."""


def output_disk_full(folder: Path, error: BaseException) -> DiskFull:
    """Return the error for all that a run writes besides its checkpoints."""
    return full_disk(folder, RESERVED_BYTES, purpose=PURPOSE, error=error)


def newest_attempt(folder: Path) -> int:
    """Return number of the last attempt with a log in a folder; 0 if there is none."""
    return max([0, *_archived(folder), *_attempts(folder / NAME)])


def archive_log(folder: Path) -> None:
    """Put an older life's log aside under its number."""
    path = folder / NAME
    if not path.exists():
        return
    taken = _archived(folder)
    attempt = max([1, *_attempts(path)])
    if attempt in taken:  # a log cut within its first line does not tell its number
        attempt = max(taken) + 1
    path.rename(folder / f"events-{attempt}.jsonl")


def _archived(folder: Path) -> list[int]:
    return [
        int(match[1])
        for path in folder.glob("events-*.jsonl")
        if (match := re.fullmatch(r"events-(\d+)\.jsonl", path.name))
    ]


def _attempts(path: Path) -> list[int]:
    """Return the attempt that a log's first line names, if it has a whole line."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        first = file.readline()
    return [parse_event(first).attempt] if first.endswith(b"\n") else []
