"""What goes into a sampler that knows no trainer, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from trainer.model.tokenizers import decode_text
from trainer.rollout.engine import Request
from trainer.types import Completion


@dataclass(frozen=True, kw_only=True)
class SeededPrompt:
    """One completion that is asked for."""

    token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One completion as tokens, with the log-probs it was drawn with."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def seeded_prompts(requests: Sequence[Request]) -> list[SeededPrompt]:
    """Each completion of each request, in order."""
    return [
        SeededPrompt(token_ids=tuple(request.prompt.token_ids), seed=seed)
        for request in requests
        for seed in request.seeds
    ]


def as_groups(
    requests: Sequence[Request],
    sampled: Sequence[Sampled],
    *,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Sequence[int],
) -> list[tuple[Completion, ...]]:
    """The completions of each request, of what `seeded_prompts` asked for."""
    each = iter(sampled)
    return [
        tuple(as_completion(next(each), tokenizer, eos_ids) for _ in request.seeds)
        for request in requests
    ]


def as_completion(
    sampled: Sampled, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int]
) -> Completion:
    """A completion as the trainer has it, of one that ends with such a token or not."""
    stops = sampled.token_ids[-1] in eos_ids
    # The ending token itself is no part of the text.
    written = sampled.token_ids[:-1] if stops else sampled.token_ids
    return Completion(
        text=decode_text(tokenizer, written),
        token_ids=sampled.token_ids,
        logprobs=sampled.logprobs,
        end_reason="stop" if stops else "length",
    )
