"""What rules print while they score, kept for whoever reads the score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

# A step of a hundred groups is then some megabytes at most, however much is printed.
MAX_GROUP_CHARS = 65_536

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


def cut_logs(logs: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Of a group's logs what one event carries: the first 64 KiB of them in all.

    >>> cut_logs([{"f": "abc"}])
    [{"f": "abc"}]
    """
    left = MAX_GROUP_CHARS
    kept: list[dict[str, str]] = []
    for each in logs:
        texts = {}
        for name, text in each.items():
            texts[name] = text[:left]
            if left < len(text):
                texts[name] += f"\n… {left:,} of {len(text):,} characters\n"
            left -= min(left, len(text))
        kept.append(texts)
    return kept


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
