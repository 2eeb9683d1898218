"""Progress on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Output(Protocol):
    """A text stream, or Django's wrapper of one with its `ending` set to nothing."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


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
