"""What rules print while they score, kept for whoever reads the score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

# However much is printed, a run of 10,000 steps then has some gigabytes at most.
MAX_STEP_CHARS = 262_144
MAX_COMPLETION_CHARS = 8_192

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


class Notes(NamedTuple):
    """What rules said of one completion, as far as an event carries it, by rule."""

    logs: dict[str, str]  # what they printed
    errors: dict[str, str]  # why they gave no score


def cut_notes(said: Sequence[Notes], *, num_groups: int) -> list[Notes]:
    """Of what rules said of a group's completions, what its event carries.

    A step's events carry 262,144 characters of it, the same for each of its groups,
    and of one completion 8,192. Errors come before what was printed, and a text for
    which nothing is left is left out.

    >>> cut_notes([Notes({"f": "abc"}, {})], num_groups=1)
    [Notes(logs={"f": "abc"}, errors={})]
    """
    of_group = MAX_STEP_CHARS // max(num_groups, 1)
    left = [MAX_COMPLETION_CHARS] * len(said)
    kept = [Notes({}, {}) for _ in said]
    for part in ("errors", "logs"):
        for place, notes in enumerate(said):
            for name, text in getattr(notes, part).items():
                room = min(left[place], of_group)
                if room == 0:
                    continue
                getattr(kept[place], part)[name] = _cut(text, room)
                left[place] -= min(room, len(text))
                of_group -= min(room, len(text))
    return kept


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[:room]}\n… {room:,} of {len(text):,} characters\n"


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
