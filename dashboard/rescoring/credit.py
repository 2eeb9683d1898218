"""What new rewards would have taught: batch, advantages and signals of a step.

As the engine does it in trainer.gathering and algorithm.credit, which need torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.rescoring.settings import why_no_advantages
from trainer.algorithm.advantages import (
    group_advantages,
    reward_matrix,
    rule_advantages,
    whiten,
)
from trainer.config import RewardConfig, RunConfig
from trainer.events import Signal
from trainer.rewards.scoring import OVERLONG, Score, parts_of, signal_of_rewards
from trainer.rewards.spec import recipe_bounds

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class Credit:
    """Of each group whether it is in the batch, and its advantages."""

    is_trained: list[bool]
    advantages: list[list[float]] | None
    problem: str = ""  # why there are none


def give_credit(
    groups: Sequence[Sequence[Score]],
    was_trained: Sequence[bool],
    config: RunConfig,
    *,
    step: int,
) -> Credit:
    """`groups` are all that were sampled for the step, in the batch or not."""
    is_trained = choose_batch(groups, was_trained, config, step=step)
    if problem := why_no_advantages(config):
        return Credit(is_trained, None, problem)
    batch = [group for group, is_in in zip(groups, is_trained, strict=True) if is_in]
    try:
        compared = iter(_advantages(batch, config, step=step))
    except ValueError as error:
        return Credit(is_trained, None, str(error))
    return Credit(
        is_trained,
        [
            next(compared) if is_in else [0.0] * len(group)
            for group, is_in in zip(groups, is_trained, strict=True)
        ],
    )


def choose_batch(
    groups: Sequence[Sequence[Score]],
    was_trained: Sequence[bool],
    config: RunConfig,
    *,
    step: int,
) -> list[bool]:
    """Dynamic sampling keeps groups that differ; where none does, those it had."""
    if config.rollout.dynamic_sampling == "off":
        return [True] * len(groups)
    kept = [_differs(group, config, step=step) for group in groups]
    return kept if any(kept) else list(was_trained)


def signal_of(group: Sequence[Score], config: RunConfig, *, step: int) -> Signal:
    rewards = [score.total for score in group if score.total is not None]
    return signal_of_rewards(rewards, recipe_bounds(config.reward.recipe, step=step))


def _advantages(
    batch: Sequence[Sequence[Score]], config: RunConfig, *, step: int
) -> list[list[float]]:
    if config.rollout.source == "dataset":
        return [[1.0] * len(group) for group in batch]
    rewards = reward_matrix([[score.total for score in group] for group in batch])
    if config.compares_rules:
        by_rule = zip(*_by_rule(batch, config.reward), strict=True)
        found = rule_advantages(
            np.stack([reward_matrix(groups) for groups in by_rule], axis=2),
            _weights(config.reward, step=step),
            config.advantage,
        )
    else:
        found = group_advantages(rewards, config.advantage)
    if config.advantage.whiten:
        found = whiten(found, ~np.isnan(rewards), config.advantage)
    return [row[: len(group)] for row, group in zip(found.tolist(), batch, strict=True)]


def _differs(group: Sequence[Score], config: RunConfig, *, step: int) -> bool:
    """Whether what is compared differs within the group."""
    compared: list[Values] = [[score.total for score in group]]
    if config.compares_rules:
        (by_rule,) = _by_rule([group], config.reward)
        weights = _weights(config.reward, step=step)
        compared = [
            values for values, weight in zip(by_rule, weights, strict=True) if weight
        ]
    return any(len({v for v in values if v is not None}) > 1 for values in compared)


def _by_rule(
    groups: Sequence[Sequence[Score]], reward: RewardConfig
) -> list[list[Values]]:
    """Of each group, for each rule the scores that count; last the length penalty."""
    found = []
    for group in groups:
        # At any step: their weights come later.
        parts = [parts_of(reward.recipe, score.rules, step=1) for score in group]
        rules = [
            [each[rule.name].score for each in parts] for rule in reward.recipe.rules
        ]
        if reward.overlong_buffer_tokens > 0:
            rules.append([score.rules.get(OVERLONG) for score in group])
        found.append(rules)
    return found


def _weights(reward: RewardConfig, *, step: int) -> list[float]:
    weights = [rule.weight_at(step) for rule in reward.recipe.rules]
    if reward.overlong_buffer_tokens > 0:
        weights.append(reward.overlong_penalty)
    return weights
