"""Is the completion right, and as short as it can be?"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rightness import RightnessParams, is_right
from trainer.rewards.rule import Example, Rule
from trainer.rewards.sample import Sample


class CosineLengthParams(RightnessParams):
    unit: LengthUnit = Field(
        "characters", description="What is counted; words stand between white space."
    )
    max_length: int = Field(
        1_000,
        ge=1,
        le=10_000_000,
        description="Length from which on a completion counts as long.",
        json_schema_extra={"unit": "characters or words"},
    )
    short_right_score: float = Field(
        1.0, ge=-100, le=100, description="Score of a right completion of length 0."
    )
    long_right_score: float = Field(
        0.5, ge=-100, le=100, description="Score of a right completion that is long."
    )
    short_wrong_score: float = Field(
        -1.0, ge=-100, le=100, description="Score of a wrong completion of length 0."
    )
    long_wrong_score: float = Field(
        -0.5,
        ge=-100,
        le=100,
        description="Score of a wrong completion that is long: it has tried.",
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: longer than long is long. as_published: past the maximum "
        "the cosine turns back, so that twice as long scores as short, and the answer "
        "is read as published too (Open R1).",
    )


def score_cosine(sample: Sample, params: CosineLengthParams) -> float:
    """long + (short - long) * (1 + cos(pi * min(1, length / max_length))) / 2.

    `short` and `long` are the scores of right or of wrong completions
    (arXiv:2502.03373, appendix C.1). No score where the answer's rule gives none.
    """
    right = is_right(sample, params, as_published=params.mode == "as_published")
    progress = count_length(sample.completion, params.unit) / params.max_length
    if params.mode == "strict":
        progress = min(1.0, progress)
    if right:
        short, long = params.short_right_score, params.long_right_score
    else:
        short, long = params.short_wrong_score, params.long_wrong_score
    share = (1 + math.cos(math.pi * progress)) / 2
    return short * share + long * (1 - share)


def _bounds(params: CosineLengthParams) -> tuple[float, float]:
    ends = (
        params.short_right_score,
        params.long_right_score,
        params.short_wrong_score,
        params.long_wrong_score,
    )
    return (min(ends), max(ends))


RULE = Rule(
    kind="cosine_length",
    title="Right and short",
    summary="Right answers score more the shorter they are, wrong ones less.",
    params_model=CosineLengthParams,
    score=score_cosine,
    bounds=_bounds,
    example_pass=Example(
        sample=Sample("2+2?", "4", "4"), params={"answer_kind": "numeric_answer"}
    ),
    example_fail=Example(
        sample=Sample("2+2?", "Let me see. " * 10 + "4", "4"),
        params={"answer_kind": "numeric_answer"},
    ),
    is_slow=True,
)
