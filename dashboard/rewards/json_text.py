"""JSON as a person pastes it."""

from __future__ import annotations

import json
from typing import Any


class TwiceThere(ValueError):
    """A key of an object, of which only one value could be meant."""


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise TwiceThere(
                f"The key {key[:40]!r} is in one object twice. Keep one of the two."
            )
        found[key] = value
    return found


def read_json(text: str) -> Any:
    """The tree a JSON text describes; ValueError says where the text is wrong."""
    try:
        text = text.removeprefix("\ufeff")  # the byte order mark of some editors
        return json.loads(text, object_pairs_hook=_each_key_once)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"This is not JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}."
        ) from None
    except TwiceThere:
        raise
    except (ValueError, RecursionError):
        raise ValueError(
            "This JSON nests too deep or holds a number that is too long. Shorten it."
        ) from None
