"""The batch, advantages and signals that new rewards give a step.

Mirrors trainer.gathering and algorithm.credit, which need torch. Results are packed
little-endian without padding, so that records of many steps can be concatenated and
read by numpy at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from trainer.algorithm.advantages import (
    group_advantages,
    reward_matrix,
    rule_advantages,
    whiten,
)
from trainer.config import RewardConfig, RunConfig
from trainer.events import Signal
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import OVERLONG, Score, parts_of
from trainer.rewards.spec import Recipe

Numbers = NDArray[np.float64]
Records = NDArray[np.void]

SIGNALS: tuple[str, ...] = get_args(Signal)
MIXED = SIGNALS.index("mixed")

GROUP = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("num_completions", "<u2"),
        ("old_signal", "u1"),  # its index in SIGNALS
        ("new_signal", "u1"),
        ("was_trained", "?"),
        ("is_trained", "?"),
        # Pairs of completions that have both rewards, and those whose order changed.
        ("num_pairs", "<u4"),
        ("num_reordered", "<u4"),
    ]
)
# NaN: no score. Ranks count from 1, the highest reward first; 0: no score.
COMPLETION = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("position", "<u2"),
        ("group_size", "<u2"),
        ("old", "<f8"),
        ("new", "<f8"),
        ("old_advantage", "<f8"),
        ("new_advantage", "<f8"),
        ("old_rank", "<u2"),
        ("new_rank", "<u2"),
    ]
)
SCORE = np.dtype("<f8")
Values = list[float | None]


def numbers(values: list[float | None]) -> Numbers:
    """Make an array. An infinity, which an external trainer may send, is no score."""
    scores = np.array([np.nan if v is None else v for v in values], np.float64)
    return np.where(np.isfinite(scores), scores, np.nan)


def ranks(values: Numbers) -> NDArray[np.int64]:
    """Rank 1 the highest, others by how many are higher plus one; 0 for NaN.

    >>> ranks(np.array([0.5, 1.0, 0.5, np.nan])).tolist()
    [2, 1, 2, 0]
    """
    return np.where(
        ~np.isnan(values), (values[None, :] > values[:, None]).sum(axis=1) + 1, 0
    )


def count_reordered(old: Numbers, new: Numbers) -> tuple[int, int]:
    """Pairs that have both values, and those that they put in another order.

    A tie that comes or goes is another order.
    """
    both = ~(np.isnan(old) | np.isnan(new))
    before, after = _order(old[both]), _order(new[both])
    count = int(both.sum())
    return count * (count - 1) // 2, int((before != after).sum()) // 2


def _order(values: Numbers) -> NDArray[np.int8]:
    """Compare each pair as 1, 0 or -1; the difference of two may be no number."""
    above = (values[:, None] > values[None, :]).astype(np.int8)
    return above - above.T


# Configurations and advantages.


class StepSettings:
    """The configuration of each step, with the new recipe in place of its own."""

    def __init__(self, config: dict[str, Any], spec: dict[str, Any] | None) -> None:
        """
        Args:
            config: a run's.
            spec: of the new recipe; None: each step's own.

        Raises:
            ValueError: one of them is not understood.
        """
        if "model" not in config:  # as exchange leaves it
            raise ValueError(
                "The run was imported without settings, so it cannot be "
                "rescored. Choose a run that Cohort trained."
            )
        self.recipe = None if spec is None else Recipe.model_validate(spec)
        self._stages = RunConfig.model_validate(config).phase_configs

    @cached_property
    def _configs(self) -> list[RunConfig]:
        return [self._with_recipe(phase.config) for phase in self._stages]

    def _with_recipe(self, config: RunConfig) -> RunConfig:
        if self.recipe is None:
            return config
        return config.model_copy(
            update={"reward": config.reward.model_copy(update={"recipe": self.recipe})}
        )

    def at(self, step: int) -> RunConfig:
        """Find a step's settings; after the last one, the last."""
        for phase, config in zip(self._stages, self._configs, strict=True):
            if step <= phase.last_step:
                return config
        return self._configs[-1]

    def recipes(self) -> Iterator[Recipe]:
        """List those that may be asked for."""
        if self.recipe is not None:
            yield self.recipe
            return
        yield from (config.reward.recipe for config in self._configs)


def judge_rules(recipe: Recipe) -> list[str]:
    """Rules that ask a judge about each completion, which costs money."""
    return [
        rule.name
        for rule in recipe.rules
        if RULES[rule.kind].batching is not None and rule.kind != "reward_model"
    ]


def check_recipe(recipe: Recipe) -> None:
    """ValueError where rules ask for what a rescoring has not."""
    for rule in recipe.rules:
        if rule.kind == "reward_model":
            raise ValueError(
                f"Rule “{rule.name}” uses a reward model, which only a training "
                "run can load. Remove the rule."
            )


def why_no_advantages(config: RunConfig) -> str:
    """Empty where they follow from what is stored."""
    if config.advantage.credit == "process":
        return (
            "The run credits reasoning steps (advantage.credit = process), whose "
            "token positions are not stored."
        )
    if config.advantage.credit == "preference":
        return (
            "The run trains on preference pairs (advantage.credit = preference), "
            "whose log-probs are not stored."
        )
    if config.loss.kl_in == "reward" and config.loss.kl_coef > 0:
        return (
            "The run subtracts each completion's KL from its reward (loss.kl_in "
            "= reward), and that KL is not stored."
        )
    return ""


@dataclass(frozen=True, slots=True)
class Credit:
    """The groups that are in the batch, and each group's advantages."""

    is_trained: list[bool]
    advantages: list[list[float]] | None
    problem: str = ""  # why there are none


def give_credit(
    groups: Sequence[Sequence[Score]],
    was_trained: Sequence[bool],
    config: RunConfig,
    *,
    step: int,
    lengths: Sequence[Values],
) -> Credit:
    """`groups` are all that were sampled for the step, in the batch or not; `lengths`
    the tokens of each completion.
    """
    is_trained = choose_batch(groups, was_trained, config, step=step)
    if problem := why_no_advantages(config):
        return Credit(is_trained, None, problem)
    batch = list(compress(groups, is_trained))
    matrix = reward_matrix(list(compress(lengths, is_trained)))
    try:
        compared = iter(_advantages(batch, config, step=step, lengths=matrix))
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


def _advantages(
    batch: Sequence[Sequence[Score]],
    config: RunConfig,
    *,
    step: int,
    lengths: Numbers,
) -> list[list[float]]:
    weight = config.advantage.weight
    if config.rollout.source == "dataset":
        return [[weight] * len(group) for group in batch]
    rewards = reward_matrix([[score.total for score in group] for group in batch])
    if config.compares_rules:
        by_rule = zip(*_by_rule(batch, config.reward), strict=True)
        advantages = rule_advantages(
            np.stack([reward_matrix(groups) for groups in by_rule], axis=2),
            _weights(config.reward, step=step),
            config.advantage,
            lengths=lengths,
        )
    else:
        advantages = group_advantages(rewards, config.advantage, lengths=lengths)
    if config.advantage.whiten != "no":
        is_scored = ~np.isnan(rewards)
        advantages = whiten(advantages, is_scored, config.advantage, lengths=lengths)
    return [
        row[: len(group)]
        for row, group in zip((weight * advantages).tolist(), batch, strict=True)
    ]


def _differs(group: Sequence[Score], config: RunConfig, *, step: int) -> bool:
    """Tell whether what is compared differs within the group."""
    compared: list[Values] = [[score.total for score in group]]
    if config.advantage.is_pass_at_k:
        return bool(group_advantages(reward_matrix(compared), config.advantage).any())
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
    """List each group's scores that count by rule; last the length penalty."""
    rows = []
    for group in groups:
        # At any step: their weights come later.
        parts = [parts_of(reward.recipe, score.rules, step=1) for score in group]
        rules = [
            [part[rule.name].score for part in parts] for rule in reward.recipe.rules
        ]
        if reward.overlong_buffer_tokens > 0:
            rules.append([score.rules.get(OVERLONG) for score in group])
        rows.append(rules)
    return rows


def _weights(reward: RewardConfig, *, step: int) -> list[float]:
    weights = [rule.weight_at(step) for rule in reward.recipe.rules]
    if reward.overlong_buffer_tokens > 0:
        weights.append(reward.overlong_penalty)
    return weights
