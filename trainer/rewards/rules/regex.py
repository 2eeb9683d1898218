"""Does the completion contain a pattern?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from trainer.rewards.patterns import compile_pattern, refuse_bad_pattern
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample


class RegexParams(Params):
    pattern: str = Field(
        min_length=1,
        max_length=1_000,
        description="Regular expression in RE2's syntax; (?s) lets . match a line "
        "break.",
    )
    match: Literal["contains", "whole", "absent"] = Field(
        "contains",
        description="The pattern occurs, is the whole completion, or does not occur.",
    )
    ignore_case: bool = Field(
        False, description="Upper and lower case count as the same."
    )

    _check_pattern = field_validator("pattern")(refuse_bad_pattern)


def score_regex(sample: Sample, params: RegexParams) -> float:
    """1 when the pattern matches as asked, else 0."""
    pattern = compile_pattern(params.pattern, ignore_case=params.ignore_case)
    if params.match == "whole":
        return float(pattern.fullmatch(sample.completion) is not None)
    occurs = pattern.search(sample.completion) is not None
    return float(occurs is (params.match == "contains"))


RULE = Rule(
    kind="regex",
    title="Pattern",
    summary="The completion contains, is, or avoids a regular expression.",
    params_model=RegexParams,
    score=score_regex,
    example_pass=Example(
        sample=Sample("Date?", "It was 2024-05-01."),
        params={"pattern": r"\d{4}-\d{2}-\d{2}"},
    ),
    example_fail=Example(
        sample=Sample("Date?", "It was in May."),
        params={"pattern": r"\d{4}-\d{2}-\d{2}"},
    ),
)
