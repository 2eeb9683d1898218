"""Rules for equations: the answer, or all equations of a completion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from trainer.rewards.extraction import ExtractionParams, extract, reply_of
from trainer.rewards.numbers import ArithmeticRefused, compute, read_number
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    column_of,
    compile_pattern,
    quote,
    require_column,
)

# Arithmetic as texts write it, and the signs that it is computed with.
_SIGNS = {
    "\u00d7": "*",
    "\u00f7": "/",
    "\u2212": "-",
    "\u00b7": "*",
    "\u22c5": "*",
    "\u2217": "*",
    "\u2215": "/",
    "\u2044": "/",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\left": "",
    "\\right": "",
    "\\(": " ",
    "\\)": " ",
    "$": "",
}


def as_arithmetic(text: str) -> str:
    if text.isascii() and "\\" not in text and "$" not in text:
        return text
    for written, sign in _SIGNS.items():
        text = text.replace(written, sign)
    return text


# Both published graders compare floating-point values to within this.
_PUBLISHED_TOLERANCE = Fraction(1, 100_000)
# How each finds the answer, and which characters it lets through to evaluation. Let
# through together, two asterisks are a power, which the task does not allow.
_PUBLISHED = {
    "grpo_zero": (r"(?s)<answer>(.*?)</answer>", r"[0-9+\-*/() ]+\n?"),
    "nano_aha_moment": (r"<answer>(.*?)</answer>", r"[0-9+\-*/().\s]+"),
}


class CountdownParams(ExtractionParams):
    numbers_column: str = Field(
        "numbers",
        min_length=1,
        max_length=200,
        description="Column with the whole numbers to use, as a list.",
    )
    target_column: str = Field(
        "target",
        min_length=1,
        max_length=200,
        description="Column with the target value.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: + - * / and parentheses, exact value. as_published: what "
        "the published grader accepts, including powers (**).",
    )
    published_by: Literal["grpo_zero", "nano_aha_moment"] = Field(
        "grpo_zero", description="Published grader that as_published follows."
    )


def score_countdown(sample: Sample, params: CountdownParams) -> float:
    """Return 1 for an equation that uses every number once and reaches the target, else
    0.

    strict: arithmetic over exact fractions. as_published: the first answer block,
    Python's meaning of its characters, the target met to within 1e-5.
    """
    numbers = _numbers(sample, params.numbers_column)
    value = require_column(sample, params.target_column)
    target = _number(value)
    if target is None:
        raise NotApplicable(
            f'Column "{params.target_column}" must be a number; this row has '
            f"{quote(value)}. Map the column that holds the target."
        )
    if params.mode == "as_published":
        return float(_passes_published(sample.text, numbers, target, params))
    expression = extract(reply_of(sample, read_thinking=params.read_thinking), params)
    return float(expression is not None and _passes_strict(expression, numbers, target))


def _passes_strict(expression: str, numbers: list[int], target: Fraction) -> bool:
    try:
        computed = compute(as_arithmetic(expression))
    except ArithmeticRefused:
        return False
    used = sorted(int(numeral) for numeral in computed.numerals)
    return used == numbers and computed.value == target


def _passes_published(
    completion: str, numbers: list[int], target: Fraction, params: CountdownParams
) -> bool:
    block, allowed = _PUBLISHED[params.published_by]
    match = compile_pattern(block).search(completion)
    if match is None or not compile_pattern(allowed).fullmatch(match.group(1)):
        return False
    try:
        computed = compute(match.group(1), as_python=True)
    except ArithmeticRefused:
        return False
    # The published graders count runs of digits, so 1.5 uses a 1 and a 5.
    runs = compile_pattern(r"\d+").findall(match.group(1))
    used = sorted(int(run) for run in runs)
    return used == numbers and abs(computed.value - target) < _PUBLISHED_TOLERANCE


def _numbers(sample: Sample, column: str) -> list[int]:
    """Return the row's numbers, sorted; a CSV cell such as "3 5 7" or "[3, 5, 7]" is
    read.
    """
    value = require_column(sample, column)
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    if isinstance(value, str):
        items = value.strip().strip("[]").replace(",", " ").split()
    numbers = [_number(item) for item in items]
    whole = [int(n) for n in numbers if n is not None and n.denominator == 1 and n >= 0]
    if not whole or len(whole) != len(items):
        raise NotApplicable(
            f'Column "{column}" must be a list of whole numbers; this row has '
            f"{quote(value)}. Map the column that holds the numbers."
        )
    return sorted(whole)


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return read_number(str(value))


_COLUMNS = {"numbers": [3, 5, 7], "target": 1}
COUNTDOWN = Rule(
    kind="countdown",
    title="Countdown equation",
    summary="The answer is an equation over the row's numbers, each used exactly "
    "once, that reaches the row's target.",
    params_model=CountdownParams,
    score=score_countdown,
    checks_task=True,
    example_pass=Example(
        sample=Sample("3 5 7 > 1", "<answer>3 + 5 - 7</answer>", None, _COLUMNS)
    ),
    example_fail=Example(
        sample=Sample("3 5 7 > 1", "<answer>7 - 5 - 1</answer>", None, _COLUMNS)
    ),
)


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
        description="Column with the target value. A period after an equation "
        "claims that it reaches the target, ! that it does not; a claim "
        "counts like an equation. Empty: no claims.",
    )


@dataclass(frozen=True)
class _Equation:
    """An equation of a text, or a chain of them.

    >>> _Equation(value=Fraction(8), is_true=True, mark="!")  # 3+5=8!
    """

    value: Fraction | None  # of its last side; None: it has none
    is_true: bool
    mark: str  # the character behind it


def score_equations(sample: Sample, params: EquationsParams) -> float:
    """Return true equations as a share of all; 0 when there are none.

    An equation computes something on at least one side (7 = 7 is none) and is true when
    all its sides have exactly the same value; a chain a = b = c is one.
    """
    equations = list(_equations(sample.text))
    judged = [equation.is_true for equation in equations]
    if params.target_column:
        value = column_of(sample.columns, params.target_column)
        is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
        target = read_number(str(value)) if is_number else None
        if target is None:
            there = ", ".join(sorted(sample.columns)) or "none"
            raise NotApplicable(
                f'Column "{params.target_column}" must be a number; this row has '
                f"{value!r:.80} (its columns: {there}). Name the column with the "
                "target value."
            )
        judged += [
            (equation.value == target) is (equation.mark == _HIT)
            for equation in equations
            if equation.mark in (_HIT, _MISS)
        ]
    return sum(judged) / len(judged) if judged else 0.0


def _equations(text: str) -> Iterator[_Equation]:
    text = as_arithmetic(text)
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
    """Return the sides of a chain without parentheses that enclose more than one of
    them.
    """
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


EQUATIONS = Rule(
    kind="equations",
    title="True equations",
    summary="The equations in the completion are true. Each counts equally.",
    params_model=EquationsParams,
    score=score_equations,
    example_pass=Example(sample=Sample("3 5 7 > 1", "3+5=8,8-7=1.")),
    example_fail=Example(sample=Sample("3 5 7 > 1", "3+5=9,9-7=2.")),
)
