"""When the lines of a trainer's log were written, kept beside the log.

A trainer, and whatever it starts, writes straight into its log, which is never changed.
So its supervisor notes each time it sees that the log has grown: a record of 16 bytes,
the log's size and the time, in trainer.times. A line was written by the first record
whose size is beyond the line's first byte. A log without records has no times.
"""

from __future__ import annotations

import math
import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

_RECORD = struct.Struct("<Qd")
# As a supervisor's journal writes them; those of older ones lack the milliseconds.
STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?) ")


class LogClock:
    """Notes how a log grows, and follows it when its first part is cut off."""

    def __init__(self, log: Path, *, times: Path) -> None:
        self._log, self._times = log, times
        self._size = 0
        times.parent.mkdir(parents=True, exist_ok=True)
        times.touch()

    def look(self) -> None:
        """
        Raises:
            OSError: such as a full disk; what was not noted is noted with the next.
        """
        size = self._log.stat().st_size
        if size <= self._size:
            return
        # As a journal cuts it, so that the two keep their order.
        now = math.floor(time.time() * 1_000) / 1_000
        with self._times.open("ab") as file:
            file.write(_RECORD.pack(size, now))
        self._size = size

    def move(self, num_bytes: int) -> None:
        """The log's lines lie so many bytes nearer to its beginning."""
        kept = _RECORD.iter_unpack(self._times.read_bytes())
        moved = [(size - num_bytes, at) for size, at in kept if size > num_bytes]
        draft = self._times.with_name(f"{self._times.name}.draft")
        draft.write_bytes(b"".join(_RECORD.pack(*record) for record in moved))
        draft.replace(self._times)
        self._size -= num_bytes


class LogTimes:
    """What such a file holds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of_lines(self, starts: Sequence[int], *, log: Path) -> list[float | None]:
        """For each line by its first byte, rising; None without records.

        What was written since the last record has the time of the last write.
        """
        if not starts or not self._path.is_file():
            return [None] * len(starts)
        with self._path.open("rb") as file:
            number = os.fstat(file.fileno()).st_size // _RECORD.size
            first, end = (
                bisect_right(
                    range(number), at, key=lambda n: _read(file.fileno(), n, 1)[0][0]
                )
                for at in (starts[0], starts[-1])
            )
            records = _read(file.fileno(), first, min(end + 1, number) - first)
        sizes = [size for size, _ in records]
        places = [bisect_right(sizes, at) for at in starts]
        newest = log.stat().st_mtime if places[-1] == len(records) else None
        return [records[n][1] if n < len(records) else newest for n in places]

    def find(self, moment: float) -> int:
        """The byte that was written next after this time; the last when none was."""
        if not self._path.is_file():
            return 0
        with self._path.open("rb") as file:
            number = os.fstat(file.fileno()).st_size // _RECORD.size
            place = bisect_right(
                range(number), moment, key=lambda n: _read(file.fileno(), n, 1)[0][1]
            )
            return _read(file.fileno(), place - 1, 1)[0][0] if place else 0


def stamp_of(text: str) -> float | None:
    """When a supervisor wrote a line, as it says itself."""
    found = STAMP.match(text)
    if found is None:
        return None
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()


def _read(descriptor: int, first: int, count: int) -> list[tuple[int, float]]:
    data = os.pread(descriptor, count * _RECORD.size, first * _RECORD.size)
    return list(_RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]))
