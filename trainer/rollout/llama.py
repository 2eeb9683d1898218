"""Decoding models built like Llama: by the few operations that a token takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from trainer.model.loading import has_four_bits
from trainer.model.policy import Policy
from trainer.rollout.decoder_layers import Layer, Norm, PackedLayer, PlainLayer

# Up to so many bytes of weights, copies of them are made that take fewer operations.
_MAX_PACKED_BYTES = 64 * 2**20
# Rows leave once this share of them has ended: sooner would cost more than it saves.
LEAVING_SHARE = 1 / 8
# Room for new tokens is made for so many at a time; where it costs more to move, for as
# many as there are, and this many at least.
_BLOCK, _LEAST_FIXED = 64, 512


class LlamaDecoder:
    """See `Decoder`; keys and values of a layer lie in one buffer with room to come."""

    def __init__(
        self,
        policy: Policy,
        cache: DynamicCache,
        padding: torch.Tensor,
        owners: torch.Tensor,
        *,
        max_new_tokens: int,
        is_fixed: bool = False,
    ) -> None:
        """As `make_decoder`.

        `is_fixed`: buffers move seldom, and what is not written yet will be looked at,
        so it has to be a number.
        """
        body: Any = policy.body
        weights = self._embedding = body.embed_tokens.weight
        kind: Callable[[Any], Layer] = PlainLayer
        if _is_packed(policy):
            kind = PackedLayer
        self.layers = [kind(layer) for layer in body.layers]
        self._norm = Norm(body.norm)
        self.length = padding.shape[1]
        self._last = self.length + max_new_tokens
        self._is_fixed = is_fixed
        self.padding = None if padding.all() else padding[owners]
        self.held = [
            self._tidied(_buffer_of(layer, states, owners, room=self._room_for_more()))
            for layer, states in zip(self.layers, cache.layers, strict=True)
        ]
        positions = torch.arange(self._last, device=policy.device)
        cos, sin = body.rotary_emb(weights[:1], positions[None])
        self._turning = self.layers[0].turning(cos[0], sin[0])
        self._bias = self._new_bias()

    @property
    def room(self) -> int:
        """Tokens of a row that there is room for."""
        return self.held[0].shape[2]

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        place = self.advance()
        bias = None if self._bias is None else self._bias[..., : self.length]

        def put(held: torch.Tensor, states: torch.Tensor) -> None:
            held[:, :, place] = states

        return self.forward(chosen, positions, put, span=self.length, bias=bias)

    def advance(self) -> int:
        """Make room for a token more of each row, and tell its place."""
        if self.length == self.room:
            self._move(room=self._room_for_more())
        self.length += 1
        return self.length - 1

    def forward(
        self,
        chosen: torch.Tensor,
        positions: torch.Tensor,
        put: Callable[[torch.Tensor, torch.Tensor], None],
        *,
        span: int,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Last hidden states [rows, H] of one more token of each row.

        Args:
            chosen: [rows], the tokens.
            positions: [rows], their places in their own sequences.
            put: writes a layer's keys and values [rows, 2 · kv heads, d] where they
                belong in its buffer.
            span: so many places of the buffers are looked at.
            bias: added to the attention's logits, [rows, 1, 1, span].
        """
        hidden = functional.embedding(chosen, self._embedding)
        turns = [table[positions] for table in self._turning]
        for layer, held in zip(self.layers, self.held, strict=True):
            queries, states = layer.ask(hidden, turns)
            put(held, states)
            seen = held[:, :, :span]
            attended = functional.scaled_dot_product_attention(
                queries,
                seen[:, : layer.num_kv],
                seen[:, layer.num_kv :],
                attn_mask=bias,
                scale=layer.scale,
            )
            hidden = layer.finish(hidden, attended)
        return self._norm(hidden)

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        return num_ended >= LEAVING_SHARE * num_rows

    def keep(self, rows: torch.Tensor) -> None:
        self._move(room=self.room, rows=rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
            self._bias = self._new_bias()

    def _move(self, *, room: int, rows: torch.Tensor | None = None) -> None:
        for place, held in enumerate(self.held):  # one after another, to save memory
            moved = _moved(held, self.length, room=room, rows=rows)
            self.held[place] = self._tidied(moved)

    def _room_for_more(self) -> int:
        """Whole blocks, with room for a token at least."""
        wanted = self.length + 1
        if self._is_fixed:
            wanted = max(wanted, min(self._last, max(2 * self.length, _LEAST_FIXED)))
        return -(-wanted // _BLOCK) * _BLOCK

    def _tidied(self, held: torch.Tensor) -> torch.Tensor:
        if self._is_fixed:
            held[:, :, self.length :] = 0.0
        return held

    def _new_bias(self) -> torch.Tensor | None:
        if self.padding is None:
            return None
        return bias_of(self.padding, self._last, dtype=self.held[0].dtype)


def _is_packed(policy: Policy) -> bool:
    dtype = policy.model.dtype
    is_small = policy.num_parameters * dtype.itemsize <= _MAX_PACKED_BYTES
    is_wide = dtype in (torch.float32, torch.float64)
    return is_small and is_wide and not has_four_bits(policy.model)


def bias_of(padding: torch.Tensor, room: int, *, dtype: torch.dtype) -> torch.Tensor:
    """-inf where a row's prompt is padded, and 0 from there on; [rows, 1, 1, room]."""
    hides = functional.pad(padding, (0, room - padding.shape[1]), value=1) == 0
    bias = torch.zeros(hides.shape, dtype=dtype, device=padding.device)
    return bias.masked_fill_(hides, -torch.inf)[:, None, None]


def _buffer_of(
    layer: Layer, states: Any, owners: torch.Tensor, *, room: int
) -> torch.Tensor:
    """Each row's keys, then values, of its prompt: [rows, 2 · kv heads, room, d]."""
    keys, values = layer.arranged(states.keys), states.values
    _, heads, length, size = keys.shape
    buffer = keys.new_empty(len(owners), 2 * heads, room, size)
    torch.index_select(keys, 0, owners, out=buffer[:, :heads, :length])
    torch.index_select(values, 0, owners, out=buffer[:, heads:, :length])
    states.keys = states.values = None  # the prompts' own are not needed any more
    return buffer


def _moved(
    held: torch.Tensor, length: int, *, room: int, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """What is held of some rows, or of all, in a new buffer of so much room."""
    count, heads, _, size = held.shape
    buffer = held.new_empty(count if rows is None else len(rows), heads, room, size)
    if rows is None:
        buffer[:, :, :length] = held[:, :, :length]
    else:
        torch.index_select(held[:, :, :length], 0, rows, out=buffer[:, :, :length])
    return buffer
