"""Is the answer, as text, the row's answer?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import ExtractionParams, extract, require_answer
from trainer.rewards.rule import Example, Rule
from trainer.rewards.sample import Sample


class ExactAnswerParams(ExtractionParams):
    ignore_case: bool = Field(
        True, description="Upper and lower case count as the same."
    )
    white_space: Literal["strip", "collapse", "remove"] = Field(
        "collapse",
        description="Strip it at both ends; also count any run of it as one space; "
        "or leave it out altogether.",
    )
    ignore_final_period: bool = Field(
        True, description="A full stop at the end of either text does not count."
    )


def score_exact(sample: Sample, params: ExactAnswerParams) -> float:
    """1 when the texts are equal after the chosen normalisation, else 0."""
    wanted = normalise(require_answer(sample), params)
    found = extract(sample.completion, params)
    return float(found is not None and normalise(found, params) == wanted)


def normalise(text: str, params: ExactAnswerParams) -> str:
    """The same for all texts that count as one another."""
    text = text.strip()
    if params.ignore_final_period:
        text = text.removesuffix(".").rstrip()
    if params.white_space != "strip":
        text = (" " if params.white_space == "collapse" else "").join(text.split())
    return text.casefold() if params.ignore_case else text


RULE = Rule(
    kind="exact_answer",
    title="Exact answer",
    summary="The answer is the row's answer, character by character.",
    params_model=ExactAnswerParams,
    score=score_exact,
    example_pass=Example(
        sample=Sample("Capital of France?", "<answer>Paris</answer>", "paris")
    ),
    example_fail=Example(
        sample=Sample("Capital of France?", "<answer>Lyon</answer>", "paris")
    ),
)
