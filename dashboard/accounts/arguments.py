"""Arguments of commands that are looked up in the database."""

from __future__ import annotations

from argparse import ArgumentTypeError


def name(text: str) -> str:
    """A name as the database may have it; files may be named otherwise."""
    if not text.isprintable():
        raise ArgumentTypeError(
            f"{ascii(text)[:60]} is no name: it has signs that cannot be shown, or is "
            "not UTF-8."
        )
    return text
