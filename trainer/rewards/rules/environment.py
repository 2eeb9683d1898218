"""Rules for the rewards that an environment gives: of an episode, and of its turns."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    Unscorable,
)

_LARGEST = 1_000


class EnvironmentParams(Params):
    minimum: float = Field(
        0.0,
        ge=-_LARGEST,
        le=_LARGEST,
        description="Lowest reward; also that of an episode which ended before its "
        "environment gave one.",
    )
    maximum: float = Field(
        1.0, ge=-_LARGEST, le=_LARGEST, description="Highest reward."
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.minimum >= self.maximum:
            raise ValueError(
                f"The minimum, {self.minimum:g}, must be less than the maximum, "
                f"{self.maximum:g}. Swap them."
            )
        return self


class TurnRewardsParams(EnvironmentParams):
    of: Literal["mean", "sum", "last"] = Field(
        "mean",
        description="What counts: the mean or the sum of all turns' rewards, or the "
        "last turn's. A turn without a reward counts as 0.",
    )


def score_environment(sample: Sample, params: EnvironmentParams) -> float:
    """Return the environment's reward of the episode."""
    reward = sample.environment_reward
    return _checked(sample, params.minimum if reward is None else reward, params)


def score_turns(sample: Sample, params: TurnRewardsParams) -> float:
    """Return the mean or sum of the turns' rewards, or the last one.

    >>> rewards 1, 0 and none: mean 1/3, sum 1, last 0
    """
    rewards = [
        turn.get("reward") or 0.0
        for turn in sample.turns
        if turn["role"] == "assistant"
    ]
    total = math.fsum(rewards[-1:] if params.of == "last" else rewards)
    count = len(rewards) if params.of == "mean" else 1
    return _checked(sample, total / max(count, 1), params)


def _checked(sample: Sample, reward: float, params: EnvironmentParams) -> float:
    if not sample.turns:
        raise NotApplicable(
            "The completion is no episode of an environment. Set environment.kind."
        )
    if not params.minimum <= reward <= params.maximum:
        raise Unscorable(
            f"The environment gave a reward of {reward:g}, which is not between "
            f"{params.minimum:g} and {params.maximum:g}. Change the rule's minimum and "
            "maximum."
        )
    return float(reward)


def _example(*rewards: float, total: float) -> Example:
    turns = [{"role": "assistant", "content": "9", "reward": r} for r in rewards]
    sample = Sample("5 24 ?", "9", turns=turns, environment_reward=total)
    return Example(sample=sample)


ENVIRONMENT = Rule(
    kind="environment",
    title="Environment",
    summary="The environment's reward of the whole episode.",
    params_model=EnvironmentParams,
    score=score_environment,
    bounds=lambda params: (params.minimum, params.maximum),
    checks_task=True,
    example_pass=_example(1.0, total=1.0),
    example_fail=_example(1.0, total=0.0),
)
TURN_REWARDS = Rule(
    kind="turn_rewards",
    title="Turn rewards",
    summary="The environment's rewards of the policy's turns.",
    params_model=TurnRewardsParams,
    score=score_turns,
    bounds=lambda params: (params.minimum, params.maximum),
    example_pass=_example(1.0, 1.0, total=0.0),
    example_fail=_example(1.0, 0.0, total=0.0),
)
