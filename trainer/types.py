"""A group: the completions of one prompt, and what they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.algorithm import advantages
from trainer.algorithm.advantages import Floats, group_std
from trainer.data import Prompt
from trainer.events import EndReason, Signal
from trainer.rewards.scoring import Score, signal_of_rewards


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One sampled text. `logprobs` (nats) are those it was sampled with."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end_reason: EndReason

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / max(len(self.logprobs), 1)


class StepScore(NamedTuple):
    """What a reasoning step was given, and where it ends."""

    end: int  # exclusive token offset in the completion
    reward: float | None  # None: no rule could score it


@dataclass(frozen=True, kw_only=True)
class Group:
    """A prompt and its completions, with their scores in the same order."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]
    # Per completion its reasoning steps, where a step recipe scores them.
    step_scores: tuple[tuple[StepScore, ...], ...] | None = None

    @property
    def scored_rewards(self) -> list[float]:
        return [score.total for score in self.scores if score.total is not None]


def reward_matrix(groups: Sequence[Group]) -> Floats:
    """Total rewards, float64 [P, G]; NaN where no rule could score a completion."""
    return advantages.reward_matrix(
        [[score.total for score in group.scores] for group in groups]
    )


def reward_std(group: Group, *, ddof: int) -> float | None:
    """Spread of a group's rewards; None when nothing in it could be scored."""
    if not group.scored_rewards:
        return None
    values = np.array([group.scored_rewards])
    return group_std(values, np.full(values.shape, True), ddof=ddof).item()


def signal_of(group: Group, *, bounds: tuple[float, float]) -> Signal:
    """What a group teaches; `bounds` are the recipe's lowest and highest reward."""
    return signal_of_rewards(group.scored_rewards, bounds)
