"""What a trainer tells as lines of the event log, one JSON object each.

Their line and epoch are put in front when they are sent: a server that cannot be
reached has given no epoch yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

# A server takes 16 MiB; what is longer is cut here, as it would be left out there.
MAX_LINE_BYTES = 15 * 2**20
MAX_TEXT = 200_000  # characters of one completion


def encode(tree: Mapping[str, Any]) -> bytes:
    """One line, its end included. Numbers that are not finite are null."""
    text = json.dumps(plain(tree), ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate, which a decoder may leave, has no place in UTF-8.
    line = text.encode("utf-8", "replace")
    if len(line) > MAX_LINE_BYTES:
        return encode(_too_long(tree, len(line)))
    return line + b"\n"


def _too_long(tree: Mapping[str, Any], num_bytes: int) -> dict[str, Any]:
    return {
        "type": "warned",
        "time": tree["time"],
        "step": tree["step"],
        "code": "line_too_long",
        "message": f"What was told of step {tree['step']} ({tree['type']}) takes "
        f"{num_bytes:,} bytes; {MAX_LINE_BYTES:,} can be sent, so it was left out.",
    }


def place(line: bytes, *, number: int, epoch: int) -> bytes:
    """With its place in the log, as the server wants it."""
    return b'{"line":%d,"epoch":%d,' % (number, epoch) + line.lstrip(b"{")


def plain(value: Any) -> Any:
    """As JSON has it; whatever is no JSON, such as a number of NumPy's, as a number."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        return plain(float(value))
    except (TypeError, ValueError):
        return str(value)


def number(value: Any) -> float | None:
    """None: there is none, or it is not finite."""
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
