"""The penalty for length, of the groups of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainer.config import RunConfig
from trainer.rewards.length_penalty import penalised
from trainer.types import Group


def penalise_overlong(groups: Sequence[Group], config: RunConfig) -> list[Group]:
    """Lower each reward by `overlong_penalty` times the completion's fraction."""
    reward = config.reward
    return [
        replace(
            group,
            scores=tuple(
                penalised(
                    score,
                    completion.num_tokens,
                    max_new_tokens=config.rollout.max_new_tokens,
                    buffer=reward.overlong_buffer_tokens,
                    penalty=reward.overlong_penalty,
                )
                for score, completion in zip(
                    group.scores, group.completions, strict=True
                )
            ),
        )
        for group in groups
    ]
