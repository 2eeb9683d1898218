"""What every rollout engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.groups import Completion
from trainer.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to continue once for each seed."""

    prompt: Prompt
    seeds: tuple[int, ...]


class RolloutEngine(Protocol):
    """Samples completions from the policy as it is now."""

    def sample(
        self,
        requests: Sequence[Request],
        *,
        max_new_tokens: int,
        temperature: float,
    ) -> list[tuple[Completion, ...]]:
        """For each request one completion per seed, in order.

        A completion follows from its seed alone: not from what is sampled beside it.
        Temperature 0 takes the likeliest token; log-probs are then those of
        temperature 1.
        """
        ...

    def sync_weights(self) -> None:
        """Make the engine sample from the policy's present weights."""
        ...
