"""Does the completion come close to the longest one that is wanted?"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample


class SoftOverlongParams(Params):
    unit: LengthUnit = Field(
        "characters",
        description="What is counted; words stand between white space. In tokens, up "
        "to the limit of a run's completions, reward.overlong_buffer_tokens does it.",
    )
    limit: int = Field(
        4_000,
        ge=1,
        le=10_000_000,
        description="Length from which on a completion has the whole penalty, -1.",
    )
    buffer: int = Field(
        1_000,
        ge=1,
        le=10_000_000,
        description="Length before the limit over which the penalty grows evenly.",
    )

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.limit:
            raise ValueError(
                f"The buffer {self.buffer} is longer than the limit {self.limit}. "
                "Shorten it, or raise the limit."
            )
        return self


def score_overlong(sample: Sample, params: SoftOverlongParams) -> float:
    """-clip((n - (limit - buffer)) / buffer, 0, 1) (arXiv:2503.14476, section 3.4).

    >>> limit 100, buffer 20, a completion of 90: -0.5
    """
    length = count_length(sample.completion, params.unit)
    inside = length - (params.limit - params.buffer)
    # None of it is 0, not -0.
    return 0.0 - min(max(inside / params.buffer, 0.0), 1.0)


RULE = Rule(
    kind="soft_overlong",
    title="Soft overlong",
    summary="A penalty: how far the completion has come through the buffer before the "
    "limit of its length.",
    params_model=SoftOverlongParams,
    score=score_overlong,
    bounds=lambda params: (-1.0, 0.0),
    example_pass=Example(
        sample=Sample("Why?", "Because it is so."), params={"limit": 60, "buffer": 20}
    ),
    example_fail=Example(
        sample=Sample("Why?", "Well, " * 9), params={"limit": 60, "buffer": 20}
    ),
)
