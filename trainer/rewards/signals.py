"""What the rewards of a group teach."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.events import Signal
from trainer.rewards.spec import bound_tolerance


def signal_of_rewards(rewards: Sequence[float], bounds: tuple[float, float]) -> Signal:
    """`rewards`: of the completions that have one; `bounds`: the recipe's.

    >>> signal_of_rewards([1.0, 1.0], (0.0, 1.0))
    'all_right'
    """
    if not rewards:
        return "unscorable"
    lowest, highest = bounds
    if min(rewards) < max(rewards):
        return "mixed"
    if is_right(rewards[0], highest=highest):
        return "all_right"
    if rewards[0] <= lowest + bound_tolerance(lowest):
        return "all_wrong"
    return "tied"


def is_right(reward: float | None, *, highest: float) -> bool:
    """Whether a reward is the highest that the recipe can give."""
    return reward is not None and reward >= highest - bound_tolerance(highest)
