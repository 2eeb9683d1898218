"""What `cohort` prints, its progress bar and its exit codes."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
import unicodedata
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

DONE = 0
REFUSED = 1  # by the server
MISUSED = 2
STOPPED = 3  # the watched run was stopped or cancelled
FAILED = 4  # the watched run failed
UNREACHABLE = 5
INTERRUPTED = 130
BROKEN_PIPE = 141

BY_STATE = {"finished": DONE, "stopped": STOPPED, "failed": FAILED}
EXIT_CODES = """\
exit codes:
  0   success; the watched run finished
  1   the server refused the request
  2   invalid command, option or file
  3   the watched run was stopped or cancelled
  4   the watched run failed
  5   server unreachable
  130 interrupted (Ctrl-C)
"""


class CommandEnded(Exception):
    """Ends the command with this exit code; the output is complete."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def print_text(text: str) -> None:
    """Print a result, with control and format characters escaped."""
    sys.stdout.write(f"{plain(text)}\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print an object on one line."""
    text = json.dumps(value, ensure_ascii=False, default=_tree_of)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tree_of(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    names = [field.name for field in fields(value) if field.name != "client"]
    return {name: getattr(value, name) for name in names}


def show(args: Namespace, value: Any, text: str) -> None:
    """Print a result as text, or with --json as an object."""
    print_json(value) if args.json else print_text(text)


def plain(text: str) -> str:
    """
    >>> plain("a\\x1b[31mb\\tc")
    'a\\\\x1b[31mb\\tc'
    """
    return "".join(map(_plain_character, text))


def _plain_character(char: str) -> str:
    # Cc: control, Cf: invisible or reversing text, Cs: surrogate.
    if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs"):
        return char
    return char.encode("unicode_escape").decode()


def short(text: str, length: int) -> str:
    """Shorten to one line.

    >>> short("1 + 1\\n= 2", 6)
    '1 + 1…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[Any]], *, right: str = ""
) -> None:
    """`right`: titles of right-aligned columns, separated by spaces."""
    texts = [[plain(" ".join(str(cell).split())) for cell in row] for row in rows]
    table = [list(titles), *texts]
    widths = [max(_width(row[i]) for row in table) for i in range(len(titles))]
    numbers = [title in right.split() for title in titles]
    for row in table:
        cells = []
        for cell, width, is_number in zip(row, widths, numbers, strict=True):
            space = " " * (width - _width(cell))
            cells.append(space + cell if is_number else cell + space)
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two."""
    return sum(
        0
        if unicodedata.combining(char)
        else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


REDRAW_SECONDS, LINE_SECONDS = 0.1, 10.0
CLEAR = "\r\x1b[K"


class Bar:
    """Progress of a file on standard error, which keeps piped results clean.

    On a terminal one line is redrawn; otherwise a line is added every 10 s.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        # A file that finishes quickly prints no line.
        self._drawn_at = 0.0 if self._is_terminal else self._began

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._drawn_at < (
            REDRAW_SECONDS if self._is_terminal else LINE_SECONDS
        ):
            return
        self._drawn_at = now
        of = f" of {size(total)}" if total else ""
        rate = size(done / max(now - self._began, 0.001))
        line = plain(f"{self._what} {size(done)}{of}, {rate}/s")
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{CLEAR}{line[:width]}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()


class StderrHandler(logging.Handler):
    """Writes the client's log lines over a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        clear = CLEAR if sys.stderr.isatty() else ""
        sys.stderr.write(f"{clear}{plain(record.getMessage())}\n")
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
