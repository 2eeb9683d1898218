"""JSON as a person pastes it."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str) -> Any:
    """The tree a JSON text describes; ValueError says where the text is wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"This is not JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}."
        ) from None
    except (ValueError, RecursionError):
        raise ValueError(
            "This JSON nests too deep or holds a number that is too long."
        ) from None
