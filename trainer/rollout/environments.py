"""Environments: what answers a policy between its turns.

An environment is a pure function of a row, a seed and what the policy has said. It
keeps nothing between calls, so an episode that was stopped goes on as it would have,
and a call can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainer.data import Row
from trainer.rewards.rule import Message
from trainer.types import ToolCall


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


class Environment(Protocol):
    """Answers a policy's turns."""

    @property
    def is_quick(self) -> bool:
        """It answers in this process, at once, and never fails."""
        ...

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """JSON schemas of the tools that the policy may call."""
        ...

    def open(self, row: Row, seed: int) -> Sequence[Message]:
        """Return what stands behind the row's own prompt in every episode."""
        ...

    def reply(self, row: Row, seed: int, said: Sequence[Said]) -> Reply:
        """Answer the last of the policy's turns.

        Raises:
            EnvironmentFailed: it has no answer; the episode cannot be scored.
        """
        ...


class EnvironmentFailed(Exception):
    """An environment has no answer, for a reason that the user reads."""

    def __init__(self, text: str, *, is_timeout: bool = False) -> None:
        super().__init__(text)
        self.is_timeout = is_timeout
