"""Rules for the length of a completion, alone or with its correctness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Outcome,
    Params,
    Rule,
    Sample,
    Unscorable,
)
from trainer.rewards.rules.rightness import RightnessParams, are_right, is_right


class LengthParams(Params):
    unit: LengthUnit = Field(
        "characters",
        description="Unit of the length; words are separated by white space. To "
        "penalise tokens near the completion limit, use "
        "reward.overlong_buffer_tokens.",
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
        description="Outside the range the score falls linearly from 1 to 0 over this "
        "length. 0: at once.",
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
    """Return 1 inside [minimum, maximum]; outside,
    max(0, 1 - distance / (soft_edge + 1)).
    """
    length = count_length(sample.completion, params.unit)
    distance = max(params.minimum - length, length - params.maximum, 0)
    return max(0.0, 1.0 - distance / (params.soft_edge + 1))


LENGTH = Rule(
    kind="length",
    title="Length",
    summary="The completion's length is within a range, optionally with soft edges.",
    params_model=LengthParams,
    score=score_length,
    example_pass=Example(
        sample=Sample("Why?", "Because it is so."), params={"maximum": 40}
    ),
    example_fail=Example(sample=Sample("Why?", "Well, " * 20), params={"maximum": 40}),
)


class SoftOverlongParams(Params):
    unit: LengthUnit = Field(
        "characters",
        description="Unit of the length; words are separated by white space. To "
        "penalise tokens near the completion limit, use "
        "reward.overlong_buffer_tokens.",
    )
    limit: int = Field(
        4_000,
        ge=1,
        le=10_000_000,
        description="Length from which a completion gets the full penalty, -1.",
    )
    buffer: int = Field(
        1_000,
        ge=1,
        le=10_000_000,
        description="Length before the limit over which the penalty grows linearly.",
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


SOFT_OVERLONG = Rule(
    kind="soft_overlong",
    title="Soft overlong",
    summary="A penalty that grows over the buffer before the length limit.",
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


class CosineLengthParams(RightnessParams):
    unit: LengthUnit = Field(
        "characters",
        description=("Unit of the length; words are separated by white space."),
    )
    max_length: int = Field(
        1_000,
        ge=1,
        le=10_000_000,
        description="Length from which a completion counts as long.",
        json_schema_extra={"unit": "characters or words"},
    )
    short_right_score: float = Field(
        1.0, ge=-100, le=100, description="Score of a correct completion of length 0."
    )
    long_right_score: float = Field(
        0.5, ge=-100, le=100, description="Score of a long correct completion."
    )
    short_wrong_score: float = Field(
        -1.0, ge=-100, le=100, description="Score of a wrong completion of length 0."
    )
    long_wrong_score: float = Field(
        -0.5,
        ge=-100,
        le=100,
        description=(
            "Score of a long wrong completion. Above the short one, it "
            "rewards longer CoT."
        ),
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: the score is constant above the maximum. as_published: "
        "the cosine rises again above the maximum, so a completion of "
        "twice that length scores like a short one; answers are parsed as "
        "published (Open R1).",
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


def _cosine_bounds(params: CosineLengthParams) -> tuple[float, float]:
    ends = (
        params.short_right_score,
        params.long_right_score,
        params.short_wrong_score,
        params.long_wrong_score,
    )
    return (min(ends), max(ends))


COSINE_LENGTH = Rule(
    kind="cosine_length",
    title="Cosine length",
    summary="Shorter correct answers score higher, shorter wrong answers lower.",
    params_model=CosineLengthParams,
    score=score_cosine,
    bounds=_cosine_bounds,
    example_pass=Example(
        sample=Sample("2+2?", "4", "4"), params={"answer_kind": "numeric_answer"}
    ),
    example_fail=Example(
        sample=Sample("2+2?", "Let me see. " * 10 + "4", "4"),
        params={"answer_kind": "numeric_answer"},
    ),
    is_slow=True,
)


class LengthRankParams(RightnessParams):
    unit: LengthUnit = Field(
        "characters",
        description=("Unit of the length; words are separated by white space."),
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: a row whose answer cannot be parsed gets no score. "
        "as_published: its completions count as correct, and answers are "
        "parsed as published (Open R1).",
    )


def score_lengths(samples: Sequence[Sample], params: LengthRankParams) -> list[Outcome]:
    """Return 0.5 - (length - shortest) / (longest -
    shortest); at most 0 for a wrong one.

    0 where all are of one length (arXiv:2501.12599, section 2.3.3).
    """
    is_published = params.mode == "as_published"
    right = are_right(samples, params, as_published=is_published)
    lengths = [count_length(sample.completion, params.unit) for sample in samples]
    shortest, longest = min(lengths), max(lengths)
    if is_published:
        right = [isinstance(outcome, NotApplicable) or outcome for outcome in right]
    width = longest - shortest
    scores: list[Outcome] = []
    for verdict, length in zip(right, lengths, strict=True):
        score = 0.5 - ((length - shortest) / width if width else 0.5)
        if isinstance(verdict, Unscorable):
            scores.append(verdict)
        else:
            scores.append(score if verdict else min(0.0, score))
    return scores


LENGTH_RANK = Rule(
    kind="length_rank",
    title="Relative length",
    summary="Among a prompt's completions, shorter correct ones score higher and long "
    "wrong ones lower.",
    params_model=LengthRankParams,
    score_group=score_lengths,
    bounds=lambda params: (-0.5, 0.5),
    example_pass=Example(
        sample=Sample("2+2?", "4", "4"),
        params={"answer_kind": "numeric_answer"},
        others=("Let me see. It is 4",),
    ),
    example_fail=Example(
        sample=Sample("2+2?", "Let me see. It is 4", "4"),
        params={"answer_kind": "numeric_answer"},
        others=("4",),
    ),
    is_slow=True,
)
