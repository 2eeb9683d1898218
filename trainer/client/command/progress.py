"""How far something is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

from trainer.client.command.output import plain

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
