"""Whether a test holds, given what the code under test gave back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainer.rewards.sandbox.values import (
    Incomparable,
    are_equal_as_json,
    as_number,
    compare,
    is_true,
)

Formula = dict[str, Any]
Replies = Sequence[Any]  # one for each step, as far as it came


def holds(formula: Formula, replies: Replies) -> bool:
    """False also where Python would raise, or where a reply is missing or no reply."""
    try:
        return _holds(formula, replies)
    except (Incomparable, RecursionError, ValueError):
        return False


def is_judged_inside(formula: Formula) -> bool:
    """Whether a part of it was judged where the code under test could cheat."""
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
        return are_equal_as_json(_value(inner, replies), formula["value"])
    if kind == "truth":
        return is_true(_value(inner, replies))
    values = [_operand(each, replies) for each in inner]
    if kind == "compare":
        pairs = zip(values, formula["operators"], values[1:], strict=False)
        return all(compare(left, operator, right) for left, operator, right in pairs)
    left, right = map(as_number, values)
    if kind == "distance":
        limit = formula["limit"]["value"]
        return compare(_as_tree(abs(left - right)), formula["operator"], limit)
    assert kind == "isclose", kind
    return math.isclose(
        left,
        right,
        rel_tol=as_number(formula["relative"]),
        abs_tol=as_number(formula["absolute"]),
    )


def _as_tree(number: float) -> Any:
    return number if math.isfinite(number) else {"f": repr(number)}


def _operand(operand: Formula, replies: Replies) -> Any:
    return operand["value"] if "value" in operand else _value(operand["step"], replies)


def _value(step: int, replies: Replies) -> Any:
    reply = _reply(step, replies)
    if not isinstance(reply, dict) or reply.keys() != {"value"}:
        raise Incomparable
    return reply["value"]


def _reply(step: int, replies: Replies) -> Any:
    if step >= len(replies):
        raise Incomparable
    return replies[step]
