"""Environments: what answers a policy between its turns.

An environment is a pure function of a row, a seed and what the policy has said. It
keeps nothing between calls, so an episode that was stopped goes on as it would have,
and a call can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.data import Row
from trainer.rewards.rule import Message, answers_of, message_text
from trainer.seeding import derive
from trainer.types import ToolCall

MAX_CALLS = 64  # of a turn, and messages of a reply


@dataclass(frozen=True, kw_only=True)
class Said:
    """A turn of the policy, as an environment reads it."""

    text: str  # all of it
    content: str  # without thinking and calls
    calls: tuple[ToolCall, ...] = ()  # in order, without results


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of an environment to the policy's last turn."""

    messages: tuple[Message, ...] = ()  # role user, or tool with the tool's name
    is_done: bool = False  # the episode ends here
    reward: float | None = None  # of the policy's last turn
    # Of the whole episode as it is now; the last one counts.
    episode_reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[ToolCall, ...] = ()  # those of the last turn, with their results


class EnvironmentFailed(ValueError):
    """An environment has no answer, for a reason that the user reads."""

    def __init__(self, text: str, *, is_timeout: bool = False) -> None:
        super().__init__(text)
        self.is_timeout = is_timeout


def environment_seed(seed: int, row: Row) -> int:
    """Return the seed of a row's environment: one for all its episodes, so that the
    members of a group play the same game.
    """
    return derive(seed, "environment", row.index)


_HIGHER, _LOWER, _HIT, _NO_NUMBER = "+", "-", ".", "!"
_NUMBER = re.compile(r"\d+", re.ASCII)


class GuessEnvironment:
    """A game: find a number between two that the row's prompt names first.

    The reply to a number is + where the number to find is higher, - where it is lower,
    and . where it is the one, which ends the game, as ! does for what is no number. A
    turn's reward is the share of the numbers that were possible before it and no longer
    are; the episode's is 1 for a hit. The number to find is the row's answer; without
    one, the seed draws it.

    >>> game = GuessEnvironment()
    >>> row = Row(index=0, prompt="5 24 ?", answer="17", columns={})
    >>> game.reply(row, 0, [Said(text="9", content="9")]).messages
    ({'role': 'user', 'content': '+'},)
    """

    is_quick = True  # it answers in this process, at once, and never fails
    tools: Sequence[dict[str, Any]] = ()  # JSON schemas of those that may be called

    def open(self, row: Row, seed: int) -> Sequence[Message]:
        """Return what stands behind the row's own prompt in every episode: nothing.

        Raises:
            EnvironmentFailed: the row is no game.
        """
        _range_of(row)
        return ()

    def reply(self, row: Row, seed: int, said: Sequence[Said]) -> Reply:
        """Answer the last of the policy's turns.

        Raises:
            EnvironmentFailed: it has no answer; the episode cannot be scored.
        """
        lowest, highest = _range_of(row)
        target = _target_of(row, lowest, highest, seed)
        num_before = num_left = highest - lowest + 1
        for turn in said:
            text = turn.content.strip()
            if not _NUMBER.fullmatch(text) or len(text) > _MOST_DIGITS:
                return _answer(_NO_NUMBER, is_done=True)
            guess, num_before = int(text), num_left
            if guess == target:
                return _answer(_HIT, is_done=True, reward=1.0, episode_reward=1.0)
            lowest = max(lowest, guess + 1) if guess < target else lowest
            highest = min(highest, guess - 1) if guess > target else highest
            num_left = highest - lowest + 1
        reward = 1 - num_left / num_before
        return _answer(_HIGHER if guess < target else _LOWER, reward=reward)


_MOST_DIGITS = 9


def _range_of(row: Row) -> tuple[int, int]:
    """Return the first two numbers of a row's last message.

    Raises:
        EnvironmentFailed: there are none, or no number lies between them.
    """
    last = row.prompt[-1:] if isinstance(row.prompt, tuple) else [row.prompt]
    text = "".join(
        part if isinstance(part, str) else message_text(part) for part in last
    )
    ends = [int(digits[:_MOST_DIGITS]) for digits in _NUMBER.findall(text)[:2]]
    if len(ends) < 2 or ends[0] > ends[1]:
        raise EnvironmentFailed(
            f"The prompt of row {row.index} (line {row.index + 1}) must begin with the "
            f"lowest and the highest number, such as 5 24; got {text[:40]!r}."
        )
    return ends[0], ends[1]


def _target_of(row: Row, lowest: int, highest: int, seed: int) -> int:
    answer = next(iter(answers_of(row.answer)), "")
    is_number = _NUMBER.fullmatch(answer) and len(answer) <= _MOST_DIGITS
    if is_number and lowest <= int(answer) <= highest:
        return int(answer)
    return lowest + seed % (highest - lowest + 1)


def _answer(
    text: str,
    *,
    is_done: bool = False,
    reward: float = 0.0,
    episode_reward: float = 0.0,
) -> Reply:
    return Reply(
        messages=({"role": "user", "content": text},),
        is_done=is_done,
        reward=reward,
        episode_reward=episode_reward,
    )
