"""One more token of each row, with nothing but the arithmetic that it takes.

transformers' forward pass serves any length and any option, and for a single token its
own bookkeeping takes longer than a small model's arithmetic. Models built like Llama
are therefore decoded by the few operations below, on the same weights and cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from trainer.architecture import is_built_like_llama
from trainer.fused import normed, rotated, signed
from trainer.policy import Policy
from trainer.rollout.cache import is_growing

# Up to so many bytes of weights, those that read the same input are copied side by
# side: one product of matrices then does the work of three.
_MAX_JOINED_BYTES = 64 * 2**20


class Decoder(Protocol):
    """Takes rows on by a token at a time; made anew whenever the weights change."""

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Last hidden states [rows, H] after one more token of each row.

        Args:
            chosen: [rows], the tokens.
            positions: [rows], their places in their own sequences.
        """
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only; `rows` are their places."""
        ...


def make_decoder(
    policy: Policy, cache: DynamicCache, padding: torch.Tensor, *, max_new_tokens: int
) -> Decoder:
    """The quickest decoder that computes what the policy does.

    Args:
        policy: with the weights to decode with.
        cache: of the prompts; each step adds to it.
        padding: [rows, L], 0 where a prompt is padded on its left.
        max_new_tokens: steps there will be at most.
    """
    if is_built_like_llama(policy.model) and is_growing(cache):
        return _LlamaDecoder(policy, cache, padding, max_new_tokens=max_new_tokens)
    return _AnyDecoder(policy, cache, padding)


class _AnyDecoder:
    """transformers' own forward pass."""

    def __init__(
        self, policy: Policy, cache: DynamicCache, padding: torch.Tensor
    ) -> None:
        self._body = policy.body
        self._cache = cache
        self._padding = padding

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


class _LlamaDecoder:
    def __init__(
        self,
        policy: Policy,
        cache: DynamicCache,
        padding: torch.Tensor,
        *,
        max_new_tokens: int,
    ) -> None:
        body: Any = policy.body
        weights = self._embedding = body.embed_tokens.weight
        self._norm = _Norm(body.norm)
        joins = policy.num_parameters * weights.itemsize <= _MAX_JOINED_BYTES
        self._layers = [_Layer(layer, joins=joins) for layer in body.layers]
        self._cache = cache
        self._num_cached = padding.shape[1]
        num_places = self._num_cached + max_new_tokens
        self._bias = None  # added to the attention's logits, [rows, 1, 1, places]
        if not padding.all():
            hides = functional.pad(padding, (0, max_new_tokens), value=1) == 0
            self._bias = weights.new_zeros(hides.shape).masked_fill_(hides, -torch.inf)
            self._bias = self._bias[:, None, None]
        places = torch.arange(num_places, device=policy.device)
        cos, sin = body.rotary_emb(weights[:1], places[None])
        self._cos = cos[0, :, None]  # [places, 1, head size]
        self._sin = signed(sin)[0, :, None]

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self._num_cached += 1
        bias = None if self._bias is None else self._bias[..., : self._num_cached]
        hidden = functional.embedding(chosen, self._embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for place, layer in enumerate(self._layers):
            queries, keys, values = layer.attend_with(hidden, cos, sin)
            keys, values = self._cache.update(
                keys[:, :, None], values[:, :, None], place
            )
            # heads that share keys stand where a longer text's queries would
            attended = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=bias, scale=layer.scale
            )
            hidden = layer.finish(hidden, attended.flatten(1))
        return self._norm(hidden)

    def keep(self, rows: torch.Tensor) -> None:
        self._cache.batch_select_indices(rows)
        if self._bias is not None:
            self._bias = self._bias[rows]


class _Layer:
    """The weights of one layer."""

    def __init__(self, layer: Any, *, joins: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.scale = float(attention.scaling)
        self._size = int(attention.head_dim)
        self._attention_norm = _Norm(layer.input_layernorm)
        self._mlp_norm = _Norm(layer.post_attention_layernorm)
        # Qwen3 normalises each head's queries and keys
        self._head_norms = (
            (_Norm(attention.q_norm), _Norm(attention.k_norm))
            if hasattr(attention, "q_norm")
            else None
        )
        inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
        self._inputs = _Maps(inputs, joins=joins)
        self._num_kv = attention.k_proj.out_features // self._size
        self._num_heads = attention.q_proj.out_features // self._size
        self._output = _Maps([attention.o_proj], joins=False)
        self._wide = _Maps([mlp.gate_proj, mlp.up_proj], joins=joins)
        self._down = _Maps([mlp.down_proj], joins=False)

    def attend_with(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, kv heads, sharing heads, d]; keys and values [rows, kv, d]."""
        rows, heads, kv = len(hidden), self._num_heads, self._num_kv
        found = self._inputs(self._attention_norm(hidden)).view(rows, -1, self._size)
        turned, values = found[:, : heads + kv], found[:, heads + kv :]
        if self._head_norms is not None:
            queries, keys = self._head_norms
            parts = [queries(turned[:, :heads]), keys(turned[:, heads:])]
            turned = torch.cat(parts, dim=1)
        turned = rotated(turned, cos, sin)
        grouped = turned[:, :heads].reshape(rows, kv, heads // kv, self._size)
        return grouped, turned[:, heads:], values

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output [rows, H] from its input and what attention brought."""
        hidden = hidden + self._output(attended)
        gate, up = self._wide(self._mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self._down(functional.silu(gate).mul_(up))


class _Maps:
    """Linear maps of the same input, their outputs side by side."""

    def __init__(self, layers: Sequence[torch.nn.Linear], *, joins: bool) -> None:
        weights: list[torch.Tensor] = [layer.weight for layer in layers]
        biases: list[torch.Tensor | None] = [layer.bias for layer in layers]
        if joins:
            weights = [torch.cat(weights)]
            given = [bias for bias in biases if bias is not None]
            biases = [torch.cat(given) if given else None]
        self._maps = list(zip(weights, biases, strict=True))

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        found = [functional.linear(inputs, *each) for each in self._maps]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


class _Norm:
    def __init__(self, layer: Any) -> None:
        self._weight = layer.weight
        self._epsilon = float(layer.variance_epsilon)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        found, _ = normed(hidden, self._weight, self._epsilon)
        return found
