"""Rules for reasoning steps, and for the answer after the reasoning."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainer.rewards.rule import (
    Example,
    Params,
    Rule,
    Sample,
    compile_pattern,
    refuse_bad_pattern,
)
from trainer.rewards.rules.rightness import RightnessParams, is_right

_WORDS = r"Step \d+:|First,|Second,|Next,|Finally,"
_STRICT = rf"(?m){_WORDS}|^\d+\.|^[-*]"
_PUBLISHED = rf"{_WORDS}|^\d+\.|\n-|\n\*"


class ReasoningStepsParams(Params):
    num_steps: int = Field(
        3,
        ge=1,
        le=1_000,
        description=(
            "Number of markers for the full score. Fewer give a proportional score."
        ),
    )
    pattern: str = Field(
        "",
        max_length=1_000,
        description="Regular expression (RE2) of a marker. Empty: Step 1:, numbered "
        "and bulleted lines, and First, Second, Next and Finally followed "
        "by a comma.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: a number or bullet counts at the start of any line. "
        "as_published: a number counts on the first line only, a bullet "
        "on any but the first (Open R1).",
    )

    _check_pattern = field_validator("pattern")(refuse_bad_pattern)


def score_steps(sample: Sample, params: ReasoningStepsParams) -> float:
    """min(1, markers / num_steps); markers do not overlap."""
    built_in = _STRICT if params.mode == "strict" else _PUBLISHED
    pattern = compile_pattern(params.pattern or built_in)
    num_found = 0
    for _ in pattern.finditer(sample.text):
        num_found += 1
        if num_found == params.num_steps:
            break
    return num_found / params.num_steps


REASONING_STEPS = Rule(
    kind="reasoning_steps",
    title="Reasoning steps",
    summary="The completion shows its steps: numbered or bulleted lines, or words "
    "such as First and Next.",
    params_model=ReasoningStepsParams,
    score=score_steps,
    example_pass=Example(
        sample=Sample(
            "2+2+2?", "Step 1: 2 and 2 are 4.\nStep 2: 4 and 2 are 6.\nFinally, 6."
        )
    ),
    example_fail=Example(sample=Sample("2+2+2?", "Step 1: it is 6.")),
)


class ReasoningAnswerParams(RightnessParams):
    delimiters: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        ("</think>",),
        min_length=1,
        max_length=10,
        title="End of reasoning",
        description="Texts that end the reasoning, one per line. The answer is read "
        "after the last occurrence of the first one that occurs.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: the answer rule's own extraction. as_published: "
        "well-formed LaTeX only (TRL).",
    )


def score_reasoning(sample: Sample, params: ReasoningAnswerParams) -> float:
    """Return 1 for a right answer behind the reasoning, 0 for a wrong one or where the
    reasoning does not end: an answer that was only thought of is none.
    """
    answer = _behind(sample.text, params.delimiters)
    if answer is None:
        return 0.0
    answered = replace(sample, completion=answer, begun="")
    return float(is_right(answered, params, as_published=params.mode == "as_published"))


def _behind(text: str, delimiters: tuple[str, ...]) -> str | None:
    for delimiter in delimiters:
        if delimiter in text:
            return text.rpartition(delimiter)[2]
    return None


_SETTINGS = {"answer_kind": "numeric_answer"}
REASONING_ANSWER = Rule(
    kind="reasoning_answer",
    title="Answer after the reasoning",
    summary="The answer after the reasoning is correct. Without an end of reasoning, "
    "the score is 0.",
    params_model=ReasoningAnswerParams,
    score=score_reasoning,
    checks_task=True,
    example_pass=Example(
        sample=Sample("2+2?", "<think>Or 5?</think>It is 4.", "4"), params=_SETTINGS
    ),
    example_fail=Example(
        sample=Sample("2+2?", "<think>It is 4.", "4"), params=_SETTINGS
    ),
    is_slow=True,
)
