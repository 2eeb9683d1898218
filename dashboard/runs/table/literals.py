"""Values as a query writes them: numbers, spans of time, moments."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from django.utils import timezone

UNITS = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def read_literal_number(text: str) -> float | None:
    """A finite number as people write it; None for anything else.

    >>> read_literal_number("1e-5"), read_literal_number("5%"), read_literal_number("a")
    (1e-05, 0.05, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return value if math.isfinite(value) else None


def read_number(text: str, key: str) -> float:
    number = read_literal_number(text)
    if number is None and key == "duration":
        number = _seconds(text)
    if number is None:
        needed = "a span such as 90min, 2h or 1d" if key == "duration" else "a number"
        raise ValueError(f"{key} is compared with {needed}; got {text!r}.")
    return number


def read_moment(text: str, key: str) -> datetime:
    """2026-11-01, 2026-11-01T12:30 (UTC), or how long ago: 7d."""
    seconds = _seconds(text)
    if seconds is not None and seconds < 3e9:
        return timezone.now() - timedelta(seconds=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{key} is compared with a day such as 2026-11-01, a moment such as "
            f"2026-11-01T12:30 (UTC), or how long ago, such as 7d; got {text!r}."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seconds(text: str) -> float | None:
    match = _SPAN.fullmatch(text)
    return float(match[1]) * UNITS[match[2]] if match else None
