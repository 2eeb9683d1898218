"""JSON without what Python lets pass: doubled keys, whole numbers beyond bounds.

NaN and Infinity are let through to `check_value`, which is asked for each column.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from dashboard.datasets.limits import MAX_DEPTH, MAX_DIGITS
from dashboard.datasets.parsing.refusals import SHOWN_CHARS
from dashboard.datasets.parsing.values import Unusable, too_many_digits


def read_json(text: str) -> Any:
    """The line's value; Unusable when it is not JSON or not unambiguous."""
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Unusable(
            f"The line is not JSON: {reason(error)} at character {error.pos + 1:,}.",
            "Write one JSON object on each line, keys and texts in double quotes.",
            text.strip()[:SHOWN_CHARS],
        ) from None
    except RecursionError:
        raise too_deep(text) from None


def reason(error: json.JSONDecodeError) -> str:
    return error.msg[0].lower() + error.msg[1:]


def too_deep(text: str) -> Unusable:
    return Unusable(
        f"Lists and objects are nested more than {MAX_DEPTH} deep.",
        "Flatten the value, or leave the column out.",
        text[:60],
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = Counter(key for key, _ in pairs)
        twice = next(key for key, count in keys.items() if count > 1)
        raise Unusable(
            "A key occurs twice in one object.", "Keep one of the two.", twice
        )
    return tree


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise too_many_digits(digits)
    return int(digits)


decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole)
