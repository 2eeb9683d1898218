"""Progress on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

BAR_WIDTH = 30


class Output(Protocol):
    """A text stream, or Django's wrapper of one with its `ending` set to nothing."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


@contextmanager
def announce(out: Output, text: str) -> Iterator[None]:
    """`text …` at once, and how long it took when it is done."""
    began = time.monotonic()
    out.write(f"  {text} … ")
    out.flush()
    try:
        yield
    except BaseException:
        out.write("\n")
        raise
    out.write(f"{time.monotonic() - began:.1f} s\n")
    out.flush()


class ProgressBar:
    """One line that fills up; on a pipe or a log file, a line every tenth."""

    def __init__(self, out: Output, text: str) -> None:
        self.out = out
        self.text = text
        self.is_terminal = out.isatty()
        self.last_tenth = -1
        self.began = time.monotonic()

    def show(self, *, phase: str, done: int, total: int) -> None:
        share = min(1.0, done / total) if total else 0.0
        if self.is_terminal:
            filled = round(share * BAR_WIDTH)
            bar = "█" * filled + "░" * (BAR_WIDTH - filled)
            self.out.write(f"\r  {self.text} {bar} {share:4.0%} {phase:<40.40}")
        elif int(share * 10) != self.last_tenth:
            self.last_tenth = int(share * 10)
            self.out.write(f"  {self.text} {share:4.0%} {phase}\n")
        self.out.flush()

    def finish(self) -> None:
        end = "\r" if self.is_terminal else ""
        took = time.monotonic() - self.began
        self.out.write(f"{end}  {self.text} … {took:.1f} s{' ' * 60 if end else ''}\n")
        self.out.flush()
