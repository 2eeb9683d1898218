"""Are the equations that the completion writes true?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pydantic import Field

from trainer.rewards.numbers import ArithmeticRefused, compute, read_number
from trainer.rewards.patterns import compile_pattern
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import NotApplicable, Sample

# Arithmetic as texts write it, and the signs that it is computed with.
_SIGNS = {
    "\u00d7": "*",
    "\u00f7": "/",
    "\u2212": "-",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "$": "",
}
_NUMERAL = r"\d+(?:\.\d+)?"
# A sign belongs to the number right behind it: the dash of a list is no minus.
_OPERAND = rf"[-+]?(?:\([ \t]*)*[-+]?{_NUMERAL}(?:[ \t]*\))*"
_OPERATOR = r"[ \t]*(?:\*\*|//|[-+*/])[ \t]*"
_SIDE = rf"{_OPERAND}(?:{_OPERATOR}{_OPERAND})*"
_CHAIN = rf"{_SIDE}(?:[ \t]*=[ \t]*{_SIDE})+"
_HIT, _MISS = ".", "!"


class EquationsParams(Params):
    target_column: str = Field(
        "",
        max_length=200,
        description="Column with the value to reach. An equation followed by . then "
        "claims to reach it and one followed by ! to miss it, and each claim counts "
        "like an equation. Empty: what follows means nothing.",
    )


@dataclass(frozen=True)
class _Equation:
    """One equation of a text, or a chain of them.

    >>> _Equation(value=Fraction(8), is_true=True, mark="!")  # 3+5=8!
    """

    value: Fraction | None  # of its last side; None: it has none
    is_true: bool
    mark: str  # the character behind it


def score_equations(sample: Sample, params: EquationsParams) -> float:
    """True equations as a share of all; 0 when there are none.

    An equation computes something on at least one side (7 = 7 is none) and is true when
    all its sides have exactly the same value; a chain a = b = c is one.
    """
    equations = list(_equations(sample.completion))
    judged = [equation.is_true for equation in equations]
    if params.target_column:
        target = _target(sample, params.target_column)
        judged += [
            (equation.value == target) is (equation.mark == _HIT)
            for equation in equations
            if equation.mark in (_HIT, _MISS)
        ]
    return sum(judged) / len(judged) if judged else 0.0


def _equations(text: str) -> Iterator[_Equation]:
    for written, sign in _SIGNS.items():
        text = text.replace(written, sign)
    for match in compile_pattern(_CHAIN).finditer(text):
        before = text[match.start() - 1 : match.start()]
        if before.isalnum() or before in ("_", ")"):  # the end of a longer term
            continue
        sides = _sides(match.group(0))
        if max(len(compile_pattern(_NUMERAL).findall(side)) for side in sides) < 2:
            continue
        values = [_value(side) for side in sides]
        yield _Equation(
            value=values[-1],
            is_true=None not in values and len(set(values)) == 1,
            mark=text[match.end() : match.end() + 1],
        )


def _sides(chain: str) -> list[str]:
    """The sides of a chain without parentheses that enclose more than one of them."""
    first, *rest = (re.sub("[ \t]", "", side) for side in chain.split("="))
    opened = first.count("(") - first.count(")")
    sides = [first[min(max(opened, 0), len(first) - len(first.lstrip("("))) :], *rest]
    last = sides[-1]
    closed = last.count(")") - last.count("(")
    surplus = min(max(closed, 0), len(last) - len(last.rstrip(")")))
    return [*sides[:-1], last[: len(last) - surplus]]


def _value(side: str) -> Fraction | None:
    try:
        return compute(side, as_python=True).value  # which has decimals
    except ArithmeticRefused:
        return None


def _target(sample: Sample, column: str) -> Fraction:
    value = sample.columns.get(column)
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    number = read_number(str(value)) if is_number else None
    if number is None:
        there = ", ".join(sorted(sample.columns)) or "none"
        raise NotApplicable(
            f'Column "{column}" must be a number; this row has {value!r:.80} (its '
            f"columns: {there}). Name the column that holds the value to reach."
        )
    return number


RULE = Rule(
    kind="equations",
    title="True equations",
    summary="The equations that the completion writes are true; each gives an equal "
    "share.",
    params_model=EquationsParams,
    score=score_equations,
    example_pass=Example(sample=Sample("3 5 7 > 1", "3+5=8,8-7=1.")),
    example_fail=Example(sample=Sample("3 5 7 > 1", "3+5=9,9-7=2.")),
)
