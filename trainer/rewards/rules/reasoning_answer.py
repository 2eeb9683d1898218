"""Is the answer right that follows the reasoning, and does the reasoning end?"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from trainer.rewards.rightness import RightnessParams, is_right
from trainer.rewards.rule import Example, Rule
from trainer.rewards.sample import Sample


class ReasoningAnswerParams(RightnessParams):
    delimiters: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        ("</think>",),
        min_length=1,
        max_length=10,
        title="Reasoning ends with",
        description="Texts that end the reasoning, each a line of its own. What is "
        "judged stands behind the last occurrence of the first one that occurs.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: the answer as its rule reads it. as_published: "
        "well-formed LaTeX alone (TRL).",
    )


def score_reasoning(sample: Sample, params: ReasoningAnswerParams) -> float:
    """1 for a right answer behind the reasoning, 0 for a wrong one or where the
    reasoning does not end: an answer that was only thought of is none.
    """
    answer = _behind(sample.completion, params.delimiters)
    if answer is None:
        return 0.0
    said = replace(sample, completion=answer)
    return float(is_right(said, params, as_published=params.mode == "as_published"))


def _behind(text: str, delimiters: tuple[str, ...]) -> str | None:
    for delimiter in delimiters:
        if delimiter in text:
            return text.rpartition(delimiter)[2]
    return None


_SETTINGS = {"answer_kind": "numeric_answer"}
RULE = Rule(
    kind="reasoning_answer",
    title="Answer behind the reasoning",
    summary="What follows the reasoning is right; where the reasoning does not end, "
    "nothing is.",
    params_model=ReasoningAnswerParams,
    score=score_reasoning,
    example_pass=Example(
        sample=Sample("2+2?", "<think>Or 5?</think>It is 4.", "4"), params=_SETTINGS
    ),
    example_fail=Example(
        sample=Sample("2+2?", "<think>It is 4.", "4"), params=_SETTINGS
    ),
    is_slow=True,
)
