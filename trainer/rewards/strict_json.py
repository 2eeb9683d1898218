"""JSON of a completion, read strictly: it is untrusted, and readers disagree."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 32
_MAX_DIGITS = 300  # a float holds 308


class NotJson(ValueError):
    """The text is no JSON, or none that anyone would want to check."""


class JsonArray(list[Any]):
    """A list that is printed shortly: jsonschema prints what it refuses, then again
    what holds it.
    """

    def __repr__(self) -> str:
        return "[…]"


class JsonObject(dict[str, Any]):
    def __repr__(self) -> str:
        return "{…}"


def read_json(text: str) -> Any:
    """Return the document as JsonObject, JsonArray, str, int, float, bool and None.

    NotJson for a name that stands twice in an object too, since readers disagree
    about it; for NaN, numbers that no float holds, and more than 32 levels.
    """
    try:
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_refuse,
        )
    except json.JSONDecodeError as error:
        raise NotJson(
            f"{error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError:
        raise NotJson(f"It is nested deeper than {MAX_DEPTH} levels.") from None
    return _checked(document, MAX_DEPTH)


def _object(pairs: Iterable[tuple[str, Any]]) -> JsonObject:
    pairs = list(pairs)
    document = JsonObject(pairs)
    if len(document) != len(pairs):
        raise NotJson("An object has a duplicate name.")
    return document


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise NotJson(f"A number has more than {_MAX_DIGITS} digits.")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise NotJson("A number is too large for a float.")
    return number


def _refuse(name: str) -> None:
    raise NotJson(f"{name} is not JSON.")


def _checked(node: Any, depth: int) -> Any:
    if depth == 0:
        raise NotJson(f"It is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(node, dict):
        for name, value in node.items():
            if isinstance(value, dict | list):
                node[name] = _checked(value, depth - 1)
        return node
    if isinstance(node, list):
        return JsonArray(
            _checked(value, depth - 1) if isinstance(value, dict | list) else value
            for value in node
        )
    return node
