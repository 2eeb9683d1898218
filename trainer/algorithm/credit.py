"""Credit assignment: the advantage of each completion, or of each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.algorithm.advantages import (
    Floats,
    group_advantages,
    process_advantages,
    rule_advantages,
    whiten,
)
from trainer.config import RewardConfig, RunConfig
from trainer.rewards.scoring import OVERLONG, parts_of
from trainer.types import Group, reward_matrix


@dataclass(frozen=True, kw_only=True)
class Credit:
    """Advantages of P groups of G completions.

    `tokens` are those of each completion's tokens, float64 [num_tokens], in the batch's
    order; None where all tokens of a completion have its own. With them a completion's
    own is their mean.
    """

    advantages: Floats  # [P, G]
    tokens: list[Floats] | None = None


def credit_groups(
    groups: Sequence[Group],
    config: RunConfig,
    *,
    step: int = 1,
    penalties: Floats | None = None,
) -> Credit:
    """Advantages of `config.advantage`, in float64, times its weight.

    Completions of the dataset have advantage 1, scored or not: SFT learns them all.

    Args:
        groups: of equal size, with `step_scores` for credit = "process".
        config: of the run or phase.
        step: of the run, for the weights of rules that are normalised separately.
        penalties: [P, G], subtracted from the rewards before they are compared.

    Raises:
        ValueError: credit is "preference", which needs log-probs
            (`preference_advantages`).
    """
    credit = _credit(groups, config, step=step, penalties=penalties)
    weight, tokens = config.advantage.weight, credit.tokens
    return Credit(
        advantages=weight * credit.advantages,
        tokens=None if tokens is None else [weight * values for values in tokens],
    )


def _credit(
    groups: Sequence[Group], config: RunConfig, *, step: int, penalties: Floats | None
) -> Credit:
    advantage, rewards = config.advantage, reward_matrix(groups)
    if config.rollout.source == "dataset":
        return Credit(advantages=np.ones_like(rewards))
    if advantage.credit == "process":
        return _process(groups, config)
    lengths = np.array(
        [
            [float(completion.num_policy_tokens) for completion in group.completions]
            for group in groups
        ]
    )
    if config.compares_rules:
        assert penalties is None
        advantages = rule_advantages(
            np.array([rule_rewards(group, config.reward) for group in groups]),
            rule_weights(config.reward, step=step),
            advantage,
            lengths=lengths,
        )
    else:
        if penalties is not None:
            rewards = rewards - penalties
        advantages = group_advantages(rewards, advantage, lengths=lengths)
    if advantage.whiten != "no":
        is_scored = ~np.isnan(rewards)
        advantages = whiten(advantages, is_scored, advantage, lengths=lengths)
    return Credit(advantages=advantages)


def rule_rewards(group: Group, reward: RewardConfig) -> list[list[float]]:
    """Return each completion's scores that count by rule, [G, R]; NaN where there is
    none.

    The overlong penalty, where there is one, counts as the last rule.
    """
    rewards = []
    for score in group.scores:
        # At any step: their weights come later.
        parts = parts_of(reward.recipe, score.rules, step=1)
        rule_scores = [_number(part.score) for part in parts.values()]
        if reward.overlong_buffer_tokens > 0:
            rule_scores.append(_number(score.rules.get(OVERLONG)))
        rewards.append(rule_scores)
    return rewards


def rule_weights(reward: RewardConfig, *, step: int) -> list[float]:
    """Return weights, at a step of the run, of what `rule_rewards` gives.

    The overlong penalty is normalised like a rule, which takes its size away; as weight
    it has it again.
    """
    weights = [rule.weight_at(step) for rule in reward.recipe.rules]
    if reward.overlong_buffer_tokens > 0:
        weights.append(reward.overlong_penalty)
    return weights


def step_rewards(group: Group) -> list[list[float]]:
    """Return rewards of each completion's steps, NaN = no score.

    The last step also has the completion's own reward: what the steps led to.
    """
    assert group.step_scores is not None
    rewards = []
    for score, steps in zip(group.scores, group.step_scores, strict=True):
        scores_of_steps = [_number(step.reward) for step in steps]
        if score.total is not None:
            scores_of_steps[-1] = score.total + (
                0.0 if math.isnan(scores_of_steps[-1]) else scores_of_steps[-1]
            )
        rewards.append(scores_of_steps)
    return rewards


def _process(groups: Sequence[Group], config: RunConfig) -> Credit:
    """Step rewards compared within each group, and summed over what follows."""
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in step_rewards(group)]
    ends = [
        [step.end for step in steps]
        for group in groups
        for steps in group.step_scores or ()
    ]
    lengths = [completion.num_tokens for completion in completions]
    tokens = process_advantages(
        rewards, ends, lengths, config.advantage, group_size=len(groups[0].completions)
    )
    if config.advantage.whiten != "no":
        scored = [
            np.array(completion.loss_mask)
            & (not all(math.isnan(reward) for reward in step_values))
            for completion, step_values in zip(completions, rewards, strict=True)
        ]
        whitened = whiten(
            np.concatenate(tokens), np.concatenate(scored), config.advantage
        )
        tokens = np.split(whitened, np.cumsum(lengths)[:-1])
    means = np.array(
        [
            row[list(completion.loss_mask)].mean()
            for row, completion in zip(tokens, completions, strict=True)
        ]
    )
    return Credit(advantages=means.reshape(len(groups), -1), tokens=tokens)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
