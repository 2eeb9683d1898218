"""Groups, completions and their turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, repeat
from math import isnan, nan
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from trainer.algorithm import advantages
from trainer.algorithm.advantages import Floats, group_std
from trainer.data import Prompt
from trainer.events import EndReason
from trainer.rewards.scoring import Score

Author = Literal["policy", "environment"]
# The error of an episode whose tokens would not be those that its policy read.
REWRITTEN = (
    "The environment did not go on with the conversation so far: it rewrites it, has "
    "several agents, or the row was made from another task."
)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool that the policy called, and what came back."""

    name: str
    arguments: dict[str, Any] | str  # text: as written, where it could not be read
    result: str = ""
    error: str = ""  # why there is no result; the policy reads it
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The text and tokens that one author wrote at a stretch."""

    author: Author = "policy"
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None  # nats, as sampled; None: they were not
    # Of an environment's turn: the calls whose results it has, one a message; how long
    # it took; and the characters of its messages, between which the chat template's
    # stand.
    calls: tuple[ToolCall, ...] = ()
    seconds: float | None = None
    shown: tuple[tuple[int, int], ...] | None = None  # None: all
    # Of the policy's turn before another: the environment's reward for it, and whether
    # its last token ended it and is no part of its text.
    reward: float | None = None
    has_end_token: bool = False

    @property
    def messages(self) -> list[tuple[int, int, ToolCall | None]]:
        """Its messages: where each begins and ends in its text, and its call."""
        ranges = self.shown if self.shown is not None else ((0, len(self.text)),)
        calls = self.calls if len(self.calls) == len(ranges) else repeat(None)
        return [(*span, call) for span, call in zip(ranges, calls, strict=False)]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A completion of a prompt: turns of the policy and of its environment.

    Without an environment it is one turn. Its tokens are those of all turns; the loss
    and all that is measured of tokens cover the policy's alone.
    """

    turns: tuple[Turn, ...]
    end_reason: EndReason
    # One of the texts `rollout.stop` ended it, not a token for that.
    is_stopped_by_text: bool = False
    # Of an episode that an environment took part in: why it failed, its reward, and
    # what else the environment measured.
    is_episode: bool = False
    error: str = ""
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_one_turn(
        cls,
        *,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        end_reason: EndReason,
        is_stopped_by_text: bool = False,
    ) -> Self:
        """Return what a policy wrote that no one answered."""
        turn = Turn(text=text, token_ids=token_ids, logprobs=logprobs)
        return cls(
            turns=(turn,),
            end_reason=end_reason,
            is_stopped_by_text=is_stopped_by_text,
        )

    @property
    def has_end_token(self) -> bool:
        """The last token ended the completion and is no part of its text."""
        is_stop = self.end_reason == "stop" and not self.is_stopped_by_text
        return is_stop or self.turns[-1].has_end_token

    @cached_property
    def text(self) -> str:
        return "".join(turn.text for turn in self.turns)

    @cached_property
    def policy_turns(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.turns if turn.author == "policy")

    @cached_property
    def policy_text(self) -> str:
        """The policy's turns, a line each: all that rules judge."""
        return "\n".join(turn.text for turn in self.policy_turns)

    @property
    def policy_ids(self) -> tuple[int, ...]:
        """The tokens that an engine sampled."""
        return tuple(chain.from_iterable(turn.token_ids for turn in self.policy_turns))

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(turn.token_ids for turn in self.turns))

    @cached_property
    def logprobs(self) -> tuple[float, ...]:
        """The log-prob of each token; NaN where no one sampled it."""
        logprobs_of_turns = (
            (nan,) * len(turn.token_ids) if turn.logprobs is None else turn.logprobs
            for turn in self.turns
        )
        return tuple(chain.from_iterable(logprobs_of_turns))

    @cached_property
    def loss_mask(self) -> tuple[bool, ...]:
        """True for each token that the policy wrote."""
        masks = (
            (turn.author == "policy",) * len(turn.token_ids) for turn in self.turns
        )
        return tuple(chain.from_iterable(masks))

    @cached_property
    def turn_ends(self) -> tuple[int, ...]:
        """The end of each of the policy's turns in the tokens, exclusive."""
        ends = accumulate(len(turn.token_ids) for turn in self.turns)
        return tuple(
            end
            for end, turn in zip(ends, self.turns, strict=True)
            if turn.author == "policy"
        )

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The places of the tokens that ended turns of the policy."""
        last = self.turns[-1] if self.has_end_token else None
        return tuple(
            end - 1
            for end, turn in zip(self.turn_ends, self.policy_turns, strict=True)
            if turn.token_ids and (turn.has_end_token or turn is last)
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_policy_tokens(self) -> int:
        """The number of tokens that an engine sampled."""
        return sum(self.loss_mask)

    @property
    def mean_logprob(self) -> float:
        """Over the tokens that were sampled."""
        sampled = [value for value in self.logprobs if not isnan(value)]
        return sum(sampled) / max(len(sampled), 1)


class StepScore(NamedTuple):
    """The reward of a reasoning step, and where it ends."""

    end: int  # exclusive token offset in the completion
    reward: float | None  # None: no rule could score it


@dataclass(frozen=True, kw_only=True)
class Group:
    """A prompt and its completions, with their scores in the same order."""

    prompt: Prompt
    completions: tuple[Rollout, ...]
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
