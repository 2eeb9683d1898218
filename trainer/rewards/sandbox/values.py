"""Compares values from a sandbox as Python would, without building them.

They are JSON, written by `encode` of `inside.messages`, from an untrusted process: no
object of theirs is built or hashed, and invalid values are equal to nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

_MAX_DIGITS = 100_000  # hexadecimal ones, of a whole number
# Of a fraction, whose terms are divided out in time that grows with their square.
_MAX_RATIO_DIGITS = 2_000


class Incomparable(Exception):
    """Python would raise here, or the value is no value."""


def are_equal(left: Any, right: Any) -> bool:
    """a == b of Python: 1 equals 1.0 and True, a list no tuple, a nan nothing."""
    try:
        is_equal = _canonical(left) == _canonical(right)
    except _EqualsNothing:
        return False
    return is_equal


def _without_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_tuples(item) for item in value]
    if isinstance(value, dict) and value.keys() == {"t"}:
        return _without_tuples(value["t"])
    if isinstance(value, dict) and isinstance(value.get("d"), list):
        return {"d": [_without_tuples(pair) for pair in value["d"]]}
    return value


def is_true(value: Any) -> bool:
    """bool(a)"""
    if isinstance(value, dict):
        tag, inner = _tagged(value)
        if tag == "o":
            return isinstance(inner, list) and len(inner) == 2 and inner[1] is True
        if tag in ("n", "f", "q", "c"):
            return not are_equal(value, 0)
        return bool(inner)
    return bool(value)


def compare(left: Any, operator: str, right: Any) -> bool:
    """`left operator right`, for every comparison that Python knows.

    Raises:
        Incomparable: such as 1 < "a".
    """
    return _COMPARISONS[operator](left, right)


def as_number(value: Any) -> float:
    """Return the nearest float; Incomparable when it is no real number."""
    try:
        return float(_real(value))
    except OverflowError:
        raise Incomparable from None


class _EqualsNothing(Incomparable):
    pass


def _canonical(value: Any) -> str:
    """Return the same text or tree for values that are equal, another for others."""
    try:
        return json.dumps(_tree(value))
    except RecursionError:
        raise _EqualsNothing from None


def _tree(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return _number_tree(value)
    if isinstance(value, list):
        return ["list", *map(_tree, value)]
    tag, inner = _tagged(value)
    if tag in ("n", "f", "q"):
        return _number_tree(_real(value))
    if tag == "c":
        if not isinstance(inner, list) or len(inner) != 2:
            raise _EqualsNothing
        real, imaginary = map(_tree, inner)
        return real if imaginary == _number_tree(0) else ["complex", real, imaginary]
    if tag == "b" and isinstance(inner, str):
        return ["bytes", inner]
    if not isinstance(inner, list):
        raise _EqualsNothing
    if tag == "t":
        return ["tuple", *map(_tree, inner)]
    if tag == "r":
        return ["range", *map(_tree, inner)]
    # Sorted as texts: sets of an adversary's numbers are never hashed.
    if tag == "s":
        return ["set", *sorted({json.dumps(_tree(item)) for item in inner})]
    if tag == "d":
        return ["dict", *sorted(json.dumps(_tree(pair)) for pair in inner)]
    raise _EqualsNothing


def _number_tree(number: bool | int | float | Fraction) -> Any:
    if isinstance(number, float) and not math.isfinite(number):
        if math.isnan(number):
            raise _EqualsNothing
        return ["infinity", number > 0]
    top, bottom = number.as_integer_ratio()
    return ["number", hex(top), hex(bottom)]


def _tagged(value: Any) -> tuple[str, Any]:
    if not isinstance(value, dict) or len(value) != 1:
        raise _EqualsNothing
    ((tag, inner),) = value.items()
    return tag, inner


def _real(value: Any) -> int | float | Fraction:
    if isinstance(value, int | float):
        return value
    try:
        tag, inner = _tagged(value)
        if tag == "n":
            return _whole(inner)
        if tag == "q":
            if max(map(len, inner)) > _MAX_RATIO_DIGITS:
                raise Incomparable
            return Fraction(_whole(inner[0]), _whole(inner[1]))
        if tag == "f" and inner in ("inf", "-inf", "nan"):
            return float(inner)
    except (_EqualsNothing, ValueError, TypeError, LookupError, ZeroDivisionError):
        raise Incomparable from None
    raise Incomparable


def _whole(text: Any) -> int:
    if not isinstance(text, str) or len(text) > _MAX_DIGITS:
        raise Incomparable
    return int(text, 16)


def _is_less(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    items = [_sequence(side) for side in (left, right)]
    if items[0] is not None and items[1] is not None and items[0][0] == items[1][0]:
        for left_item, other in zip(items[0][1], items[1][1], strict=False):
            if not are_equal(left_item, other):
                return _is_less(left_item, other)
        return len(items[0][1]) < len(items[1][1])
    return _real(left) < _real(right)


def _sequence(value: Any) -> tuple[str, list[Any]] | None:
    if isinstance(value, list):
        return "list", value
    if isinstance(value, dict) and isinstance(value.get("t"), list):
        return "tuple", value["t"]
    return None


def _is(left: Any, right: Any) -> bool:
    """Compare None, True and False alone, which there is one of each."""
    for side in (left, right):
        if side is None or isinstance(side, bool):
            return left is right
    raise Incomparable


def _contains(item: Any, container: Any) -> bool:
    if isinstance(container, str) and isinstance(item, str):
        return item in container
    if isinstance(container, dict) and container.get("r"):
        # By arithmetic: a range may be longer than a list can be.
        first, last, step = map(_real, container["r"])
        is_between = min(first, last) <= (number := _real(item)) <= max(first, last)
        return is_between and (number - first) % step == 0
    members = _members(container)
    try:
        # Once: both sides may be as long as a reply can be.
        canonical_item = _canonical(item)
    except _EqualsNothing:
        return False
    return any(_is_canonical(member, canonical_item) for member in members)


def _is_canonical(value: Any, wanted: str) -> bool:
    try:
        return _canonical(value) == wanted
    except _EqualsNothing:
        return False


def _members(container: Any) -> list[Any]:
    if isinstance(container, list):
        return container
    tag, inner = _tagged(container)
    if tag not in ("t", "s", "d", "r") or not isinstance(inner, list):
        raise Incomparable
    if tag != "d":
        return inner
    return [pair[0] for pair in inner if isinstance(pair, list) and pair]


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": are_equal,
    "!=": lambda left, right: not are_equal(left, right),
    "<": _is_less,
    ">": lambda left, right: _is_less(right, left),
    "<=": lambda left, right: _is_less(left, right) or are_equal(left, right),
    ">=": lambda left, right: _is_less(right, left) or are_equal(left, right),
    "is": _is,
    "is not": lambda left, right: not _is(left, right),
    "in": _contains,
    "not in": lambda left, right: not _contains(left, right),
}


Formula = dict[str, Any]
Replies = Sequence[Any]  # one for each step, as far as it came


def holds(formula: Formula, replies: Replies) -> bool:
    """Return False also where Python would raise, or where a reply is missing or no
    reply.
    """
    try:
        return _holds(formula, replies)
    except (Incomparable, RecursionError, ArithmeticError, TypeError, ValueError):
        return False


def is_judged_inside(formula: Formula) -> bool:
    """Return whether a part of it was judged where the code under test could cheat."""
    parts: list[Formula] = [*formula.get("all", ()), *formula.get("any", ())]
    if "not" in formula:
        parts.append(formula["not"])
    return "inside" in formula or any(map(is_judged_inside, parts))


def _holds(formula: Formula, replies: Replies) -> bool:
    ((kind, inner), *_) = formula.items()
    if kind == "all":
        return all(_holds(part, replies) for part in inner)
    if kind == "any":
        return any(_holds(part, replies) for part in inner)
    if kind == "not":
        return not _holds(inner, replies)
    if kind == "inside":
        return bool(_reply(inner, replies) == {})
    if kind == "json":
        return are_equal(_without_tuples(_value(inner, replies)), formula["value"])
    if kind == "truth":
        return is_true(_value(inner, replies))
    values = [
        side["value"] if "value" in side else _value(side["step"], replies)
        for side in inner
    ]
    if kind == "compare":
        pairs = zip(values, formula["operators"], values[1:], strict=False)
        return all(compare(left, operator, right) for left, operator, right in pairs)
    left, right = map(as_number, values)
    if kind == "distance":
        number, limit = abs(left - right), formula["limit"]["value"]
        distance = number if math.isfinite(number) else {"f": repr(number)}
        return compare(distance, formula["operator"], limit)
    assert kind == "isclose", kind
    return math.isclose(
        left,
        right,
        rel_tol=as_number(formula["relative"]),
        abs_tol=as_number(formula["absolute"]),
    )


def _value(step: int, replies: Replies) -> Any:
    reply = _reply(step, replies)
    if not isinstance(reply, dict) or reply.keys() != {"value"}:
        raise Incomparable
    return reply["value"]


def _reply(step: int, replies: Replies) -> Any:
    if step >= len(replies):
        raise Incomparable
    return replies[step]
