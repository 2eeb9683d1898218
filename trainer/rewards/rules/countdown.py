"""Does the equation reach the target, with each number used exactly once?"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from trainer.rewards.extraction import ExtractionParams, extract
from trainer.rewards.numbers import ArithmeticRefused, compute, read_number
from trainer.rewards.patterns import compile_pattern
from trainer.rewards.rule import Example, Rule
from trainer.rewards.sample import NotApplicable, Sample, quote

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
        description="Column with the value to reach.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: + - * / and parentheses, exact value. as_published: "
        "what the published grader accepts, powers (**) included.",
    )
    published_by: Literal["grpo_zero", "nano_aha_moment"] = Field(
        "grpo_zero", description="Whose grader as_published follows."
    )


def score_countdown(sample: Sample, params: CountdownParams) -> float:
    """1 for an equation that uses every number once and reaches the target, else 0.

    strict: arithmetic over exact fractions. as_published: the first answer block,
    Python's meaning of its characters, the target met to within 1e-5.
    """
    numbers = _numbers(sample, params.numbers_column)
    target = _target(sample, params.target_column)
    if params.mode == "as_published":
        return float(_passes_published(sample.completion, numbers, target, params))
    expression = extract(sample.completion, params)
    return float(expression is not None and _passes_strict(expression, numbers, target))


def _passes_strict(expression: str, numbers: list[int], target: Fraction) -> bool:
    try:
        computed = compute(expression)
    except ArithmeticRefused:
        return False
    used = sorted(int(numeral) for numeral in computed.numerals)
    return used == numbers and computed.value == target


def _passes_published(
    completion: str, numbers: list[int], target: Fraction, params: CountdownParams
) -> bool:
    block, allowed = _PUBLISHED[params.published_by]
    found = compile_pattern(block).search(completion)
    if found is None or not compile_pattern(allowed).fullmatch(found.group(1)):
        return False
    try:
        computed = compute(found.group(1), as_python=True)
    except ArithmeticRefused:
        return False
    # The published graders count runs of digits, so 1.5 uses a 1 and a 5.
    runs = compile_pattern(r"\d+").findall(found.group(1))
    used = sorted(int(run) for run in runs)
    return used == numbers and abs(computed.value - target) < _PUBLISHED_TOLERANCE


def _numbers(sample: Sample, column: str) -> list[int]:
    """The row's numbers, sorted; a CSV cell such as "3 5 7" or "[3, 5, 7]" is read."""
    value = _column(sample, column)
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


def _target(sample: Sample, column: str) -> Fraction:
    value = _column(sample, column)
    number = _number(value)
    if number is None:
        raise NotApplicable(
            f'Column "{column}" must be a number; this row has {quote(value)}. Map '
            "the column that holds the target."
        )
    return number


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return read_number(str(value))


def _column(sample: Sample, column: str) -> Any:
    if sample.columns.get(column) is None:
        there = ", ".join(sorted(sample.columns)) or "none"
        raise NotApplicable(
            f'The row has no column "{column}" (its columns: {there}). Name the right '
            "column in the rule, or take it along when mapping the dataset."
        )
    return sample.columns[column]


_COLUMNS = {"numbers": [3, 5, 7], "target": 1}
RULE = Rule(
    kind="countdown",
    title="Countdown equation",
    summary="The answer is an equation over the row's numbers, each used exactly "
    "once, that reaches the row's target.",
    params_model=CountdownParams,
    score=score_countdown,
    example_pass=Example(
        sample=Sample("3 5 7 > 1", "<answer>3 + 5 - 7</answer>", None, _COLUMNS)
    ),
    example_fail=Example(
        sample=Sample("3 5 7 > 1", "<answer>7 - 5 - 1</answer>", None, _COLUMNS)
    ),
)
