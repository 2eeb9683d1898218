"""Whether a value can be kept: as JSON, as UTF-8, and in PostgreSQL."""

from __future__ import annotations

import math
from typing import Any

from dashboard.datasets.limits import MAX_DEPTH, MAX_DIGITS, MAX_LINE_CHARS


class Unusable(ValueError):
    """A value that cannot be kept: what is wrong with it, and what to do."""

    def __init__(self, problem: str, remedy: str, value: Any) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.value = value


def check_value(value: Any) -> None:
    """Raise Unusable when the value, or one inside it, cannot be kept."""
    if isinstance(value, str):  # as most are
        _check_text(value)
        return
    # A list of work rather than recursion: depth is what a hostile file plays with.
    pending = [(value, 0)]
    while pending:
        inner, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise Unusable(
                f"Lists and objects are nested more than {MAX_DEPTH} deep.",
                "Flatten the value, or leave the column out.",
                "",
            )
        if isinstance(inner, dict):
            for key in inner:
                _check_leaf(key)
            pending += [(child, depth + 1) for child in inner.values()]
        elif isinstance(inner, list):
            pending += [(child, depth + 1) for child in inner]
        else:
            _check_leaf(inner)


def _check_leaf(value: Any) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        check_float(value)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        _check_int(value)
    else:
        kind = type(value).__name__
        raise Unusable(
            f"A value of type {kind} has no place in JSON.",
            "Write the column as text or numbers, or leave it out.",
            repr(value),
        )


def _check_text(text: str) -> None:
    if len(text) > MAX_LINE_CHARS:
        raise Unusable(
            f"A text may have {MAX_LINE_CHARS:,} characters at most; "
            f"this one has {len(text):,}.",
            "Shorten it, or leave the column out.",
            text,
        )
    if broken := broken_text(text):
        raise Unusable(
            f"The text holds {broken}.", "Remove that character from the row.", text
        )


def broken_text(text: str) -> str | None:
    """What in a text PostgreSQL or UTF-8 cannot hold."""
    if "\x00" in text:
        return "a NUL character"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair (U+{ord(text[error.start]):04X})"
    return None


def check_float(value: float) -> None:
    if not math.isfinite(value):
        raise Unusable(
            "The number is not finite.",
            "Use null where there is no number.",
            value,
        )


def _check_int(value: int) -> None:
    # A digit is 3.32 bits; counting them exactly would cost as much as printing.
    if value.bit_length() > MAX_DIGITS * 3.32:
        raise too_many_digits("a whole number")


def too_many_digits(value: str) -> Unusable:
    return Unusable(
        f"The number has more than {MAX_DIGITS:,} digits.",
        "Write it as text, in quotes.",
        value,
    )
