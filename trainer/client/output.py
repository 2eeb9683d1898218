"""What `cohort` prints, how far something is, and how it ends."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, TextIO

DONE = 0
REFUSED = 1  # by the server, or what was asked for cannot be done
MISUSED = 2
STOPPED = 3  # the watched run was stopped or cancelled
FAILED = 4  # the watched run failed
UNREACHABLE = 5
INTERRUPTED = 130
BROKEN_PIPE = 141

BY_STATE = {"finished": DONE, "stopped": STOPPED, "failed": FAILED}
TABLE = """\
exit codes:
  0   done; the watched run finished
  1   the server refused
  2   the command or a file is wrong
  3   the watched run was stopped or cancelled
  4   the watched run failed
  5   the server could not be reached
  130 Ctrl-C
"""


class Ended(Exception):
    """All is said; the command ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(text: str) -> None:
    """A result, without what would move a terminal's cursor or hide text."""
    sys.stdout.write(f"{plain(text)}\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    """One object on one line."""
    sys.stdout.write(json.dumps(tree_of(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def tree_of(value: Any) -> Any:
    """As the API gave it.

    >>> from trainer.client.api.records import Person
    >>> tree_of([Person("alice", "Alice")])
    [{'username': 'alice', 'name': 'Alice'}]
    """
    if is_dataclass(value) and not isinstance(value, type):
        own = [one for one in fields(value) if one.name != "client"]
        return {one.name: tree_of(getattr(value, one.name)) for one in own}
    if isinstance(value, Mapping):
        return {name: tree_of(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [tree_of(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value


def plain(text: str) -> str:
    """
    >>> plain("a\\x1b[31mb\\tc")
    'a\\\\x1b[31mb\\tc'
    """
    return "".join(one if _is_plain(one) else _escaped(one) for one in text)


def _is_plain(one: str) -> bool:
    # Cc: controls, Cf: what is not seen and may turn text round, Cs: no characters.
    return one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs")


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()


def short(text: str, length: int) -> str:
    """On one line.

    >>> short("1 + 1\\n= 2", 6)
    '1 + 1…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def say_table(
    titles: Sequence[str], rows: Iterable[Sequence[Any]], *, right: str = ""
) -> None:
    """`right`: titles of columns that hold numbers, with spaces between."""
    texts = [[plain(" ".join(str(cell).split())) for cell in row] for row in rows]
    table = [list(titles), *texts]
    widths = [max(_width(row[i]) for row in table) for i in range(len(titles))]
    numbers = [title in right.split() for title in titles]
    for row in table:
        cells = [
            _pad(cell, width, to_right=is_number)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def _pad(cell: str, width: int, *, to_right: bool) -> str:
    space = " " * (width - _width(cell))
    return space + cell if to_right else cell + space


def _width(text: str) -> int:
    """Columns of a terminal: wide letters take two."""
    return sum(
        0
        if unicodedata.combining(one)
        else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


REDRAW_SECONDS, LINE_SECONDS = 0.1, 10.0
BAR = 24


class Bar:
    """On standard error, so that what is piped holds results alone."""

    shown: Bar | None = None  # on the terminal now

    def __init__(self, what: str, *, unit: str = "", stream: TextIO | None = None):
        self._what = what
        self._is_bytes = unit == "bytes"
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        # A file that is there at once needs no line.
        self._drawn_at = 0.0 if self._is_terminal else self._began
        self._line = ""

    def __call__(self, done: int, total: int | None) -> None:
        self.show(self._told(done, total), share=done / total if total else None)

    def show(self, text: str, *, share: float | None = None) -> None:
        now = time.monotonic()
        is_last = share is not None and share >= 1 and self._is_terminal
        pause = REDRAW_SECONDS if self._is_terminal else LINE_SECONDS
        if now - self._drawn_at < pause and not is_last:
            return
        self._drawn_at = now
        if self._is_terminal:
            bar = "" if share is None else f"{_bar(share)} "
            self._draw(f"{self._what} {bar}{text}".lstrip())
        else:
            self._stream.write(f"{plain(self._what)} {plain(text)}\n")
            self._stream.flush()

    def clear(self) -> None:
        if self._line:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._line = ""

    def _draw(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._line = plain(line)[:width]
        self._stream.write(f"\r\x1b[K{self._line}")
        self._stream.flush()

    def _told(self, done: int, total: int | None) -> str:
        write = size if self._is_bytes else "{:,}".format
        of = f" of {write(total)}" if total else ""
        seconds = time.monotonic() - self._began
        rate = f", {write(int(done / seconds))}/s" if seconds > 1 else ""
        return f"{write(done)}{of}{rate}"

    def __enter__(self) -> Bar:
        Bar.shown = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()
        Bar.shown = None


class Remarks(logging.Handler):
    """What the client remarks, without spoiling a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if Bar.shown:
            Bar.shown.clear()
        sys.stderr.write(f"{plain(record.getMessage())}\n")
        sys.stderr.flush()


def size(num_bytes: float) -> str:
    """
    >>> size(999), size(32 * 2**20)
    ('999 B', '32.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"


def _bar(share: float) -> str:
    filled = round(BAR * min(max(share, 0.0), 1.0))
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def duration(seconds: float) -> str:
    """
    >>> duration(59), duration(3_660)
    ('59 s', '1 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
