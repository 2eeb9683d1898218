"""One more token of each row, with nothing but the arithmetic that it takes.

transformers' forward pass serves any length and any option, and for a single token its
own bookkeeping takes longer than a small model's arithmetic. Models built like Llama
are therefore decoded by the few operations of `LlamaDecoder`, on the same weights.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from trainer.architecture import is_built_like_llama
from trainer.policy import Policy
from trainer.rollout.cache import is_growing
from trainer.rollout.llama import LlamaDecoder


class Decoder(Protocol):
    """Takes rows on by a token at a time; made anew whenever the weights change."""

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Last hidden states [rows, H] after one more token of each row.

        They are good until the next step, which may write over them.

        Args:
            chosen: [rows], the tokens.
            positions: [rows], their places in their own sequences.
        """
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only; `rows` are their places."""
        ...


Decoding = Literal["auto", "plain"]


def make_decoder(
    policy: Policy,
    cache: DynamicCache,
    padding: torch.Tensor,
    owners: torch.Tensor,
    *,
    max_new_tokens: int,
    decoding: Decoding = "auto",
) -> Decoder:
    """A decoder that computes what the policy does: the faster one, unless `plain`.

    Args:
        policy: with the weights to decode with.
        cache: of the prompts, which it may use up.
        padding: [P, L], 0 where a prompt is padded on its left.
        owners: [rows], each row's prompt.
        max_new_tokens: steps there will be at most.
        decoding: "plain" is transformers' own forward pass for any model.
    """
    if decoding == "auto" and can_be_lean(policy) and is_growing(cache):
        return LlamaDecoder(
            policy, cache, padding, owners, max_new_tokens=max_new_tokens
        )
    return AnyDecoder(policy, cache, padding, owners)


def can_be_lean(policy: Policy) -> bool:
    """Whether there is a faster way than transformers' own forward pass."""
    return is_built_like_llama(policy.model)


class AnyDecoder:
    """transformers' own forward pass."""

    def __init__(
        self,
        policy: Policy,
        cache: DynamicCache,
        padding: torch.Tensor,
        owners: torch.Tensor,
    ) -> None:
        cache.batch_select_indices(owners)
        self._body = policy.body
        self._cache = cache
        self._padding = padding[owners]

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self._padding = functional.pad(self._padding, (0, 1), value=1)
        mask = self._padding
        if is_growing(self._cache):
            # ready-made, so that transformers need not derive it at every token
            mask = mask.bool()[:, None, None, :]
        hidden: torch.Tensor = self._body(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )[0]
        return hidden[:, -1]

    def keep(self, rows: torch.Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._padding = self._padding[rows]
