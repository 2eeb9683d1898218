"""Words that people put on runs."""

from __future__ import annotations

import re

MAX_TAGS = 20
LENGTH = 40


def check_tag(text: str) -> str:
    """The tag, spaces around it taken off. ValueError says what is wrong with it."""
    tag = " ".join(text.split())
    if not tag:
        raise ValueError("A tag has at least one character. Type one.")
    if len(tag) > LENGTH:
        raise ValueError(
            f"A tag has at most {LENGTH} characters; this one has {len(tag)}."
        )
    if wrong := re.search(r'[,"\\\x00-\x1f]', tag):
        raise ValueError(
            f"A tag holds no comma, quote, backslash or control character; got "
            f"{wrong[0]!r} in {tag!r}."
        )
    return tag


def read_tags(text: str) -> list[str]:
    """Tags with commas between, each once, in their order."""
    tags = [check_tag(part) for part in text.split(",") if part.strip()]
    found = list(dict.fromkeys(tags))
    if len(found) > MAX_TAGS:
        raise ValueError(f"A run has at most {MAX_TAGS} tags; got {len(found)}.")
    return found
