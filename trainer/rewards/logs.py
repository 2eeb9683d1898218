"""What rules print while they score, kept for whoever reads the score."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_kept: ContextVar[list[str] | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[list[str]]:
    """The texts that are told inside, as they come."""
    texts: list[str] = []
    token = _kept.set(texts)
    try:
        yield texts
    finally:
        _kept.reset(token)


def tell(text: str) -> None:
    """Keep a text, where somebody does."""
    texts = _kept.get()
    if texts is not None and text:
        texts.append(text)


def shown(data: bytes, num_bytes: int) -> str:
    """The first bytes of an output of so many, and how much is missing.

    >>> shown(b"abc", 5)
    "abc\\n… 3 of 5 bytes\\n"
    """
    # Neither a cut character nor one that no database stores.
    text = data.decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if num_bytes > len(data):
        text += f"\n… {len(data):,} of {num_bytes:,} bytes\n"
    return text
