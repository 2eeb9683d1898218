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

from trainer.model.loading import has_four_bits, is_built_like_llama
from trainer.model.policy import Policy
from trainer.rollout.cache import is_growing
from trainer.rollout.graphs import GraphDecoder
from trainer.rollout.llama import LEAVING_SHARE, LlamaDecoder


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

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        """Whether rows that have ended are to leave, with so many tokens to come."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only; `rows` are their places."""
        ...


Decoding = Literal["auto", "plain"]
# Ways to decode, the fastest first: the operations of `LlamaDecoder` replayed as a CUDA
# graph, the same operations without a graph, transformers' own forward pass.
Way = Literal["graph", "lean", "plain"]


def ways_to_decode(policy: Policy, decoding: Decoding) -> list[Way]:
    """Those that a policy's model allows, the fastest first."""
    if decoding == "plain" or not is_built_like_llama(policy.model):
        return ["plain"]
    # bitsandbytes unpacks weights by kernels that cannot be recorded
    if not is_gpu(policy.device) or has_four_bits(policy.model):
        return ["lean", "plain"]
    return ["graph", "lean", "plain"]


def is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def make_decoder(
    policy: Policy,
    cache: DynamicCache,
    padding: torch.Tensor,
    owners: torch.Tensor,
    *,
    max_new_tokens: int,
    way: Way,
) -> Decoder:
    """A decoder that computes what the policy does.

    Args:
        policy: with the weights to decode with.
        cache: of the prompts, which it may use up.
        padding: [P, L], 0 where a prompt is padded on its left.
        owners: [rows], each row's prompt.
        max_new_tokens: steps there will be at most.
        way: one of `ways_to_decode`.
    """
    if way == "plain" or not is_growing(cache):
        return AnyDecoder(policy, cache, padding, owners)
    lean = LlamaDecoder(
        policy,
        cache,
        padding,
        owners,
        max_new_tokens=max_new_tokens,
        is_fixed=way == "graph",
    )
    return GraphDecoder(lean) if way == "graph" else lean


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

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        return num_ended >= LEAVING_SHARE * num_rows

    def keep(self, rows: torch.Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._padding = self._padding[rows]
