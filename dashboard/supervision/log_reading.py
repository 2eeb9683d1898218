"""Parts of a log by byte, as a page may show them, with the times of their lines."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

# Colours, cursor moves (CSI), titles and links (OSC), and the short escapes.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if code != 0x09}
_DELETE = {0x7F: "\u2421"}
# C1 controls and what turns or hides text are written out, as \u202e.
_HIDDEN = [
    *range(0x80, 0xA0),
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0x061C,
    0xFEFF,
]
_SHOWN: dict[int, int | str] = {
    **_CONTROLS,
    **_DELETE,
    **{code: f"\\u{code:04x}" for code in _HIDDEN},
}
BLOCK_BYTES = 256 * 1024
MAX_LINES = 500
MAX_PART_BYTES = 256 * 1024
MAX_LINE_CHARS = 2_000
MAX_WHOLE_LINE_BYTES = 1024 * 1024
MARK_BYTES = 256
_RECORD = struct.Struct("<Qd")
# As a supervisor's log has them; those of older ones lack the milliseconds.
STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?) ")


def show_line(raw: bytes) -> str:
    """Only what follows the last carriage return: a progress bar's last state."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
    return _ESCAPES.sub("", text).translate(_SHOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    at: int  # its first byte
    text: str
    num_chars: int  # more than are in `text` when it was cut
    time: float | None = None  # when it was written, in seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Whole lines, and the one still being written when it is the last."""

    number: int  # of the first line, counted from 1
    first: int  # byte where it begins
    next: int  # byte to read on from: an unfinished line is read again
    is_end: bool  # nothing comes after these lines yet
    size: int  # of the file
    mark: str  # of the file's beginning: another one means that it was cut
    lines: list[Line]


def read_part(
    path: Path,
    *,
    after: int | None = None,
    before: int | None = None,
    line: int | None = None,
    mark: str = "",
) -> Part:
    """Read from byte `after`, up to `before`, around a line, or else the end.

    Byte positions in a file that was truncated since are invalid, so the end is
    returned.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Part(number=1, first=0, next=0, is_end=True, size=0, mark="", lines=[])
    with file:
        size = end = os.fstat(file.fileno()).st_size
        now = _mark_of(file)
        is_cut = bool(mark) and mark != now
        if line is not None:
            start = _find_line(file, max(1, line - MAX_LINES // 2))
        elif after is not None and not is_cut and after <= size:
            start = after
        elif before is not None and not is_cut and before <= size:
            start = _lines_back(file, before)
            end = before
        else:
            start = _lines_back(file, size)
        lines = list(_lines_from(file, start, end=end))
        file.seek(0)
        number = _count_newlines(file, start) + 1
    at, last = lines[-1] if lines else (start, b"\n")
    cut_lines = [cut_text(at, show_line(raw.removesuffix(b"\n"))) for at, raw in lines]
    return Part(
        number=number,
        first=start,
        next=at + len(last) * last.endswith(b"\n") if lines else start,
        is_end=not lines or at + len(last) >= size,
        size=size,
        mark=now,
        lines=cut_lines,
    )


def read_whole_line(path: Path, at: int) -> Line:
    """Read the line that begins at this byte, up to 1 MiB of it."""
    with path.open("rb") as file:
        file.seek(at)
        raw = file.readline(MAX_WHOLE_LINE_BYTES).removesuffix(b"\n")
    text = show_line(raw)
    return Line(at=at, text=text, num_chars=len(text))


def cut_text(at: int, text: str) -> Line:
    return Line(at=at, text=text[:MAX_LINE_CHARS], num_chars=len(text))


def _mark_of(file: BinaryIO) -> str:
    """Hash the first line only: the rest of a short file is still to come."""
    file.seek(0)
    begin = file.read(MARK_BYTES)
    if b"\n" not in begin and len(begin) < MARK_BYTES:
        return ""
    return hashlib.sha256(begin.split(b"\n", 1)[0]).hexdigest()[:16]


def _lines_from(file: BinaryIO, start: int, *, end: int) -> Iterator[tuple[int, bytes]]:
    """Read at most 500 lines and, unless the first is longer, 256 KiB.

    The last may lack its newline: its reader requests it again from its first byte.
    """
    file.seek(start)
    at = start
    for _ in range(MAX_LINES):
        if at >= end or at - start >= MAX_PART_BYTES:
            return
        raw = file.readline(end - at)
        if not raw:
            return
        yield at, raw
        at += len(raw)


def _lines_back(file: BinaryIO, end: int) -> int:
    """Return the byte at which the last MAX_LINES lines before `end` begin."""
    begin = max(0, end - MAX_PART_BYTES)
    file.seek(begin)
    data = file.read(end - begin)
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(MAX_LINES):
        newline = data.rfind(b"\n", 0, at)
        if newline < 0:
            return begin if begin == 0 else _line_start(file, begin, data)
        at = newline
    return begin + at + 1


def _line_start(file: BinaryIO, begin: int, data: bytes) -> int:
    """Find the first line that begins in the data, or the one that they are in."""
    first = data.find(b"\n")
    if 0 <= first < len(data) - 1:
        return begin + first + 1
    while begin > 0:
        block = max(0, begin - BLOCK_BYTES)
        file.seek(block)
        newline = file.read(begin - block).rfind(b"\n")
        if newline >= 0:
            return block + newline + 1
        begin = block
    return 0


def _find_line(file: BinaryIO, number: int) -> int:
    """Return the byte at which this line begins; the end if there are fewer."""
    file.seek(0)
    missing, at = number - 1, 0
    while missing:
        block = file.read(BLOCK_BYTES)
        if not block:
            return at
        count = block.count(b"\n")
        if count < missing:
            missing -= count
            at += len(block)
            continue
        place = -1
        for _ in range(missing):
            place = block.find(b"\n", place + 1)
        return at + place + 1
    return at


def _count_newlines(file: BinaryIO, end: int) -> int:
    """Count newlines before this byte; 32 MiB, the maximum, take about 10 ms."""
    count = 0
    while block := file.read(min(BLOCK_BYTES, end - file.tell())):
        count += block.count(b"\n")
    return count


class LogClock:
    """Records how a log grows, and continues when its beginning is cut off.

    A trainer and its children write straight into its log, which is never changed. So
    its supervisor records each time it sees that the log has grown: 16 bytes with the
    log's size and the time, in trainer.times. A line was written by the first record
    whose size is beyond the line's first byte. A log without records has no times.
    """

    def __init__(self, log: Path, *, times: Path) -> None:
        self._log, self._times = log, times
        self._size = 0
        times.parent.mkdir(parents=True, exist_ok=True)
        times.touch()

    def update(self) -> None:
        """OSError on a full disk; the next call then records the growth."""
        size = self._log.stat().st_size
        if size <= self._size:
            return
        with self._times.open("ab") as file:
            file.write(_RECORD.pack(size, time.time()))
        self._size = size

    def move(self, num_bytes: int) -> None:
        """Move records by the bytes that were cut from the log's beginning."""
        moved = [
            (size - num_bytes, at)
            for size, at in _RECORD.iter_unpack(self._times.read_bytes())
            if size > num_bytes
        ]
        draft = self._times.with_name(f"{self._times.name}.draft")
        draft.write_bytes(b"".join(_RECORD.pack(*record) for record in moved))
        draft.replace(self._times)
        self._size -= num_bytes


def read_times(times: Path, starts: Sequence[int], *, log: Path) -> list[float | None]:
    """Return when each line was written, by its first byte, rising.

    None without records of a LogClock. What was written since the last record has the
    time of the last write.
    """
    if not starts or not times.is_file():
        return [None] * len(starts)
    with times.open("rb") as file:
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


def stamp_of(text: str) -> float | None:
    """When a supervisor wrote a line, from its own timestamp."""
    match = STAMP.match(text)
    if match is None:
        return None
    return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()


def _read(descriptor: int, first: int, count: int) -> list[tuple[int, float]]:
    data = os.pread(descriptor, count * _RECORD.size, first * _RECORD.size)
    return list(_RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]))
