"""Is the completion right, and shorter than the others of its prompt?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from trainer.rewards.extraction import LengthUnit, count_length
from trainer.rewards.rightness import RightnessParams, are_right
from trainer.rewards.rule import Example, Outcome, Params, Rule
from trainer.rewards.sample import NotApplicable, Sample, Unscorable


class LengthRankParams(RightnessParams):
    unit: LengthUnit = Field(
        "characters", description="What is counted; words stand between white space."
    )
    mode: Literal["strict", "as_published"] = Field(
        "strict",
        description="strict: a row whose answer cannot be read has no score. "
        "as_published: its completions count as right, and the answer is read as "
        "published too (Open R1).",
    )


def score_lengths(samples: Sequence[Sample], params: LengthRankParams) -> list[Outcome]:
    """0.5 - (length - shortest) / (longest - shortest); at most 0 for a wrong one.

    0 where all are of one length (arXiv:2501.12599, section 2.3.3).
    """
    is_published = params.mode == "as_published"
    right = are_right(samples, params, as_published=is_published)
    lengths = [count_length(sample.completion, params.unit) for sample in samples]
    shortest, longest = min(lengths), max(lengths)
    if is_published:
        right = [isinstance(one, NotApplicable) or one for one in right]
    width = longest - shortest
    return [
        one
        if isinstance(one, Unscorable)
        else _score((length - shortest) / width if width else 0.5, is_right=one)
        for one, length in zip(right, lengths, strict=True)
    ]


def _score(place: float, *, is_right: bool) -> float:
    return 0.5 - place if is_right else min(0.0, 0.5 - place)


def _bounds(params: Params) -> tuple[float, float]:
    return (-0.5, 0.5)


RULE = Rule(
    kind="length_rank",
    title="Right and shorter than the others",
    summary="Among a prompt's completions, right ones score more the shorter they are, "
    "and long wrong ones less.",
    params_model=LengthRankParams,
    score_group=score_lengths,
    bounds=_bounds,
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
