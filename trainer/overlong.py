"""A penalty for completions that come close to the limit of their length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainer.config import RunConfig
from trainer.groups import Group
from trainer.rewards.scoring import Score

# Its part in the breakdown of a reward, beside the rules'; its weight is 1.
OVERLONG = "overlong"


def overlong_fraction(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """How far a completion has come through the buffer before the limit, 0 to 1.

    clip((n - (limit - buffer)) / buffer, 0, 1) (arXiv:2503.14476, section 3.4).

    >>> overlong_fraction(90, max_new_tokens=100, buffer=20)
    0.5
    """
    inside = num_tokens - (max_new_tokens - buffer)
    return min(max(inside / buffer, 0.0), 1.0)


def penalise_overlong(groups: Sequence[Group], config: RunConfig) -> list[Group]:
    """Lower each reward by `overlong_penalty` times the completion's fraction.

    The penalty stands in the score's breakdown, so that its parts still add up to the
    reward. A completion without a score stays without one.
    """
    reward, limit = config.reward, config.rollout.max_new_tokens
    buffer = reward.overlong_buffer_tokens
    if buffer == 0:
        return list(groups)

    def lowered(score: Score, num_tokens: int) -> Score:
        if score.total is None:
            return score
        fraction = overlong_fraction(num_tokens, max_new_tokens=limit, buffer=buffer)
        part = 0.0 - reward.overlong_penalty * fraction
        return Score(
            score.total + part, score.rules | {OVERLONG: part}, score.errors, score.logs
        )

    return [
        replace(
            group,
            scores=tuple(
                lowered(score, completion.num_tokens)
                for score, completion in zip(
                    group.scores, group.completions, strict=True
                )
            ),
        )
        for group in groups
    ]
