"""What every rollout engine does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from trainer.data import Prompt
from trainer.types import Completion


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to continue once for each seed."""

    prompt: Prompt
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a completion's tokens are chosen, and how many there are at most.

    `top_p` and `top_k` restrict the choice only: log-probs are those of the whole
    vocabulary at this temperature, so that a ratio to the policy's log-probs is 1 for
    an unchanged policy. Temperature 0 takes the likeliest token; log-probs are then
    those of temperature 1.
    """

    max_new_tokens: int
    temperature: float
    top_p: float = 1.0  # 1: any token
    top_k: int = 0  # 0: any token


# Takes the place of a request and its completions, in order.
OnGroup = Callable[[int, tuple[Completion, ...]], None]
# Takes the place of a token in its completion, counted from 0, and the token of each
# completion that has one there, by its request and its place there. An ending token is
# none. Where memory ran out, a completion begins again at 0.
OnTokens = Callable[[int, Mapping[tuple[int, int], int]], None]


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """An engine that samples on in a slower way, since the way before failed."""

    code: Literal["out_of_memory", "engine_fallback"]
    reason: str
    rows: int = 0  # out of memory: completions at a time from now on
    way: str = ""  # else what it goes on with


OnSlowed = Callable[[Slowed], None]


def ignore(place: int, completions: tuple[Completion, ...]) -> None:
    """For whoever wants all groups at the end."""


class RolloutEngine(Protocol):
    """Samples completions from the policy as it is now."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """What the token ids of its completions mean."""
        ...

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Completion, ...]]:
        """For each request one completion per seed, in order.

        A completion follows from its seed alone: not from what is sampled beside it,
        as far as the engine's arithmetic allows.

        Args:
            requests: what to sample.
            params: how.
            on_group: told of a request once all its completions have ended, while
                others have not, in the calling thread. An engine that gets all of them
                at once tells of none.
        """
        ...

    def sync_weights(self) -> None:
        """Make the engine sample from the policy's present weights."""
        ...

    def rest(self) -> None:
        """Give back what memory can be done without until something is sampled."""
        ...


@runtime_checkable
class HoldingEngine(Protocol):
    """One that has more than memory: processes, or servers that it holds."""

    def close(self) -> None:
        """Let go of them; nothing can be sampled any more."""
        ...
