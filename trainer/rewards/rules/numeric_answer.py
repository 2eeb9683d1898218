"""Is the answer, as a number, the row's answer?"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import (
    TAG_NAME,
    after_marker,
    last_block,
    last_boxed,
    require_answer,
)
from trainer.rewards.numbers import last_number, read_number
from trainer.rewards.patterns import compile_pattern
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import NotApplicable, Sample


class NumericAnswerParams(Params):
    source: Literal["last_number", "tags", "boxed", "marker"] = Field(
        "last_number",
        title="Answer is",
        description="The last number of the completion, or the last number inside "
        "the answer tags, inside \\boxed{}, or on the line after a marker.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Name of the tags, without brackets."
    )
    marker: str = Field(
        "####",
        min_length=1,
        max_length=100,
        description="Text before the answer; its last occurrence counts.",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        le=1_000_000_000,
        description="Largest allowed distance to the row's answer.",
    )
    relative_tolerance: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The same as a share of the row's answer; the larger one counts.",
    )
    percent: Literal["ignore", "divide"] = Field(
        "ignore", description="Read 50% as 50, or as one half."
    )
    wrong_score: float = Field(
        0.0, ge=-1, le=0, description="Score of a wrong or missing answer."
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: numbers as people write them. as_published: the last run "
        "of digits, decimal or fraction of the completion, whose sign and thousands "
        "separators are not seen (Simple GRPO).",
    )


def score_number(sample: Sample, params: NumericAnswerParams) -> float:
    """1 when |found - wanted| <= max(tolerance, relative * |wanted|), else wrong_score.

    Both numbers are exact fractions: 0.1 + 0.2 is 0.3 here.
    """
    wanted = _reference(sample, params)
    found = find_number(sample.completion, params)
    allowed = max(
        Fraction(params.tolerance), Fraction(params.relative_tolerance) * abs(wanted)
    )
    is_right = found is not None and abs(found - wanted) <= allowed
    return 1.0 if is_right else params.wrong_score


def find_number(completion: str, params: NumericAnswerParams) -> Fraction | None:
    """The number that counts as a completion's answer; None where there is none."""
    if params.mode == "as_published":
        return _last_digits(completion)
    text = _extract(completion, params)
    return None if text is None else last_number(text, percent=params.percent)


def _last_digits(completion: str) -> Fraction | None:
    """-7 reads as 7 here and 1,000 as 0: the published pattern has digits alone."""
    runs = compile_pattern(r"\d+\.\d+|\d+/\d+|\d+").findall(completion)
    return read_number(runs[-1]) if runs else None


def _bounds(params: NumericAnswerParams) -> tuple[float, float]:
    return (params.wrong_score, 1.0)


def _extract(completion: str, params: NumericAnswerParams) -> str | None:
    if params.source == "tags":
        return last_block(completion, params.tag)
    if params.source == "boxed":
        return last_boxed(completion)
    if params.source == "marker":
        return after_marker(completion, params.marker)
    return completion


def _reference(sample: Sample, params: NumericAnswerParams) -> Fraction:
    answer = require_answer(sample)
    # GSM8K keeps the worked solution in the answer, the number after a marker.
    number = read_number(answer, percent=params.percent)
    if number is None:
        after = answer.rpartition(params.marker)[2]
        number = read_number(after, percent=params.percent)
    if number is None:
        raise NotApplicable(
            f'The row\'s answer "{answer[:80]}" is not a number. Give a number such '
            "as 42, -1,234.5, 3/4 or 50%, or use the exact answer rule."
        )
    return number


RULE = Rule(
    kind="numeric_answer",
    title="Numeric answer",
    summary="The answer is the row's number, however it is written.",
    params_model=NumericAnswerParams,
    score=score_number,
    bounds=_bounds,
    example_pass=Example(
        sample=Sample("How much?", "Together they cost $1,250.00.", "1250")
    ),
    example_fail=Example(sample=Sample("How much?", "Together they cost 12.", "1250")),
)
