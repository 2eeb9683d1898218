"""Reading a log that is still being written: whole lines only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Consecutive lines of a log; the first has number `first`."""

    first: int
    texts: tuple[bytes, ...]
    end: int  # byte offset behind the last one

    def __bool__(self) -> bool:
        return bool(self.texts)

    @property
    def last(self) -> int:
        return self.first + len(self.texts) - 1


class LogFollower:
    """Where we are in one epoch's log.

    `read` does not move: only `advance`, called once the lines are stored, does. So a
    batch that could not be stored is read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._next_line = 1

    def read(self, *, max_bytes: int = BATCH_BYTES) -> Lines:
        data = self._read_whole_lines(max_bytes)
        # Only \n ends a line: JSON text may hold U+2028 and its like.
        texts = tuple(data.split(b"\n")[:-1])
        return Lines(first=self._next_line, texts=texts, end=self._offset + len(data))

    def advance(self, lines: Lines) -> None:
        assert lines.first == self._next_line, "lines of another place"
        self._offset = lines.end
        self._next_line = lines.last + 1

    def _read_whole_lines(self, max_bytes: int) -> bytes:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return b""
        with file:
            file.seek(self._offset)
            data = file.read(max_bytes)
            # A line longer than the batch: read on to its end.
            while b"\n" not in data and (more := file.read(max_bytes)):
                data += more
        return data[: data.rfind(b"\n") + 1]
