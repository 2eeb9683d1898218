"""A recipe's composition as one line, as pages, exports and the API show it.

    0.5·format + 1·answer clipped to [0, 1] if format ≥ 1, clipped to [0, 1]
    product((1 to 0.2 at step 100)·format, 1·answer if format ≥ 1 else n/a)

Rules stand by their names; their kinds and settings are no part of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from trainer.rewards.spec import Recipe, RuleSpec
from trainer.rewards.terms import Clip, Schedule

# How a recipe's ways to combine are called here; a sum is written with its signs.
CALLS = {
    "product": "product",
    "minimum": "minimum",
    "normalize_then_sum": "normalised",
}
SHAPES = {"to": "linear", "then": "steps"}
_POINT = re.compile(
    r"\s*(?P<word>to|then)\s+(?P<sign>[-−]?)"
    r"(?P<weight>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"\s+at\s+step\s+(?P<step>[0-9]{1,20})(?!\S)"
)


def write_formula(recipe: Recipe) -> str:
    """
    >>> "0.2·format + 1·answer if format ≥ 1, clipped to [0, 1]"
    """
    if recipe.combine == "sum":
        body = _write_sum(recipe.rules)
    else:
        terms = ", ".join(map(_write_term, recipe.rules))
        body = f"{CALLS[recipe.combine]}({terms})"
    return body + (f", clipped to {write_clip(recipe.clip)}" if recipe.clip else "")


def _write_sum(rules: Sequence[RuleSpec]) -> str:
    text = ""
    for rule in rules:
        # A schedule stands in brackets, its signs with it.
        is_less = rule.schedule is None and math.copysign(1, rule.weight) < 0
        sign = "−" if is_less else "+"
        term = _write_term(rule).removeprefix("−") if is_less else _write_term(rule)
        text += f" {sign} {term}" if text else (f"−{term}" if is_less else term)
    return text


def _write_term(rule: RuleSpec) -> str:
    text = f"{_write_weight(rule)}·{rule.name}"
    if rule.clip is not None:
        text += f" clipped to {write_clip(rule.clip)}"
    gate = rule.only_if
    if gate is not None:
        text += f" if {gate.rule} ≥ {_write_number(gate.at_least)}"
        text += " else n/a" if gate.otherwise == "not_applicable" else ""
    return text


def _write_weight(rule: RuleSpec) -> str:
    return write_weight(rule.weight, rule.schedule)


def write_weight(weight: float, schedule: Schedule | None) -> str:
    """A weight as it goes: 0.5, or (0.5 to 0.1 at step 200)."""
    start = _write_number(weight)
    return start if schedule is None else f"({start} {write_schedule(schedule)})"


def write_schedule(schedule: Schedule) -> str:
    """How a weight goes on: to 0.1 at step 200."""
    word = "to" if schedule.shape == "linear" else "then"
    return " ".join(
        f"{word} {_write_number(point.weight)} at step {point.step}"
        for point in schedule.points
    )


def read_schedule(text: str) -> dict[str, Any]:
    """The tree of what `write_schedule` writes; ValueError says from where it is wrong.

    >>> read_schedule("to 0.1 at step 200 to 0 at step 400")
    """
    points: list[dict[str, Any]] = []
    words: set[str] = set()
    position, text = 0, text.rstrip()
    while position < len(text) or not points:
        found = _POINT.match(text, position)
        if found is None or len(words | {found["word"]}) > 1:
            again = " or ".join(f'"{word} 0.1 at step 200"' for word in words or SHAPES)
            raise ValueError(
                f'The weight later cannot be read at "{text[position:].strip()[:20]}". '
                f"Write {again}."
            )
        words.add(found["word"])
        weight = float(found["weight"]) * (-1 if found["sign"] else 1)
        points.append({"step": int(found["step"]), "weight": weight})
        position = found.end()
    return {"shape": SHAPES[words.pop()], "points": points}


def write_clip(clip: Clip) -> str:
    low = "−∞" if clip.low is None else _write_number(clip.low)
    high = "∞" if clip.high is None else _write_number(clip.high)
    return f"[{low}, {high}]"


def _write_number(value: float) -> str:
    # Not :g, which would round it.
    return str(value).removesuffix(".0").replace("-", "−", 1 if value < 0 else 0)
