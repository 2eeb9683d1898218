"""A penalty for completions that come close to the limit of their length."""

from __future__ import annotations

from dataclasses import replace

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


def penalised(
    score: Score, num_tokens: int, *, max_new_tokens: int, buffer: int, penalty: float
) -> Score:
    """The score less `penalty` times the completion's fraction; buffer 0: as it is.

    The penalty stands in the breakdown, so that its parts still add up to the reward.
    A completion without a score stays without one.
    """
    if buffer == 0 or score.total is None:
        return score
    fraction = overlong_fraction(
        num_tokens, max_new_tokens=max_new_tokens, buffer=buffer
    )
    part = 0.0 - penalty * fraction
    return replace(
        score, total=score.total + part, rules=score.rules | {OVERLONG: part}
    )
