"""Is the completion as long as it should be?"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample


class LengthParams(Params):
    unit: LengthUnit = Field(
        "characters",
        description="What is counted; words stand between white space. For tokens near "
        "the limit of a completion, a run has reward.overlong_buffer_tokens.",
    )
    minimum: int = Field(
        0, ge=0, le=10_000_000, description="Shortest length with the full score."
    )
    maximum: int = Field(
        1_000, ge=1, le=10_000_000, description="Longest length with the full score."
    )
    soft_edge: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="Outside the band the score falls evenly from 1 to 0 over this "
        "length; 0: at once.",
    )

    @model_validator(mode="after")
    def _band_is_not_empty(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(
                f"The minimum {self.minimum} is above the maximum {self.maximum}. "
                "Swap them."
            )
        return self


def score_length(sample: Sample, params: LengthParams) -> float:
    """1 inside [minimum, maximum]; outside, max(0, 1 - distance / (soft_edge + 1))."""
    length = count_length(sample.completion, params.unit)
    distance = max(params.minimum - length, length - params.maximum, 0)
    return max(0.0, 1.0 - distance / (params.soft_edge + 1))


RULE = Rule(
    kind="length",
    title="Length",
    summary="The completion's length lies in a band, with soft edges if wanted.",
    params_model=LengthParams,
    score=score_length,
    example_pass=Example(
        sample=Sample("Why?", "Because it is so."), params={"maximum": 40}
    ),
    example_fail=Example(sample=Sample("Why?", "Well, " * 20), params={"maximum": 40}),
)
