"""A key-value cache made for sampling groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

# Room for new tokens added at a time.
_BLOCK = 64
# Keys and values of one sequence, [heads, tokens, d], layer by layer.
States = list[tuple[torch.Tensor, torch.Tensor]]
_KINDS = {
    *(DynamicLayer, DynamicSlidingWindowLayer, DummyLayer),
    *(LinearAttentionLayer, LinearAttentionAndFullAttentionLayer),
}
# These keep their states in a class of their own, or in the model itself.
_OWN_CACHES = {"minimax", "recurrent_gemma"}


def head_size(config: PreTrainedConfig) -> int:
    """Return the numbers that a key of one head has."""
    text: Any = config.get_text_config()
    return int(
        getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    )


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Count bytes of a token's keys and values in all layers."""
    text: Any = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * int(text.num_hidden_layers * heads) * head_size(config) * dtype.itemsize


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer in buffers that have room for tokens to come.

    DynamicLayer copies everything it holds for each new token. Here a token is written
    in its place, and everything is copied only once in 64 tokens, or when rows leave.
    """

    def lazy_initialization(
        self, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self._length = 0
        self._key_buffer = _widened(key_states[:, :, :0], key_states.shape[2])
        self._value_buffer = _widened(value_states[:, :, :0], value_states.shape[2])
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, last = self._length, self._length + key_states.shape[2]
        if last > self._key_buffer.shape[2]:
            self._key_buffer = _widened(self._key_buffer[:, :, :first], last)
            self._value_buffer = _widened(self._value_buffer[:, :, :first], last)
        self._key_buffer[:, :, first:last] = key_states
        self._value_buffer[:, :, first:last] = value_states
        return self._show(last)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the given rows, in the given order; a row may be taken repeatedly."""
        length = self._length
        self._key_buffer = _selected(self._key_buffer, length, indices)
        self._value_buffer = _selected(self._value_buffer, length, indices)
        self._show(length)

    def hold(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold these states in place of what was held."""
        self._key_buffer = _widened(keys, keys.shape[2])
        self._value_buffer = _widened(values, values.shape[2])
        self._show(keys.shape[2])

    def _show(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._length = length
        self.keys = self._key_buffer.narrow(2, 0, length)
        self.values = self._value_buffer.narrow(2, 0, length)
        return self.keys, self.values


def _widened(states: torch.Tensor, length: int) -> torch.Tensor:
    """States [rows, heads, t, d] in a new buffer with room for `length` and a block."""
    rows, heads, used, size = states.shape
    buffer = states.new_empty(rows, heads, length + _BLOCK, size)
    buffer[:, :, :used] = states
    return buffer


def _selected(buffer: torch.Tensor, length: int, indices: torch.Tensor) -> torch.Tensor:
    _, heads, room, size = buffer.shape
    chosen = buffer.new_empty(len(indices), heads, room, size)
    torch.index_select(buffer[:, :, :length], 0, indices, out=chosen[:, :, :length])
    return chosen


def make_cache(config: PreTrainedConfig) -> DynamicCache:
    """Return an empty cache for a model.

    Layers with a window, or with a recurrent or convolutional state, keep transformers'
    own kind. Layers without a state, or that attend to another layer's, are dummies.

    Raises:
        ValueError: the model keeps another kind of state.
    """
    try:
        cache = DynamicCache(config=config)
    except KeyError as error:
        raise _stateful(str(error.args[0])) from error
    kinds = [type(layer) for layer in cache.layers]
    if unknown := set(kinds) - _KINDS:
        raise _stateful(unknown.pop().__name__)
    kind = config.get_text_config().model_type
    if kind in _OWN_CACHES or set(kinds) == {LinearAttentionLayer}:
        raise _stateful(kind)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer  # type: ignore[no-untyped-call]  # its base is
        for layer in cache.layers
    ]
    return cache


def _stateful(kind: str) -> ValueError:
    return ValueError(
        f"Cohort's decoder cannot sample from this model: it does not support a {kind} "
        "layer's state. Choose another model or, if vLLM supports this one, set "
        'rollout.engine to "vllm" or "vllm_server".'
    )


def is_growing(cache: DynamicCache) -> bool:
    """Return whether every layer attends to all tokens, so that one mask serves them
    all.
    """
    return all(isinstance(layer, GrowingLayer) for layer in cache.layers)


def is_recurrent(cache: DynamicCache) -> bool:
    """Return whether a layer has a state that each token changes, padding too."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def count_bytes(cache: DynamicCache) -> tuple[int, int]:
    """Count bytes of keys and values, and of states of a fixed size."""
    growing = list[torch.Tensor | None]()
    fixed = list[torch.Tensor | None]()
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer):
            growing += layer.keys, layer.values
        if isinstance(layer, LinearAttentionLayer):
            fixed += [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return _num_bytes(growing), _num_bytes(fixed)


def _num_bytes(states: Sequence[torch.Tensor | None]) -> int:
    return sum(state.nbytes for state in states if state is not None)


def select_rows(cache: DynamicCache, indices: torch.Tensor) -> None:
    """Keep the given rows, in the given order; a row may be taken repeatedly."""
    layers: list[Any] = cache.layers
    for layer in layers:
        if isinstance(layer, LinearAttentionLayer):
            # it has no batch_select_indices
            layer.reorder_cache(indices)  # type: ignore[arg-type]  # any integers do
        else:
            layer.batch_select_indices(indices)


def load_states(
    cache: DynamicCache,
    sequences: Sequence[States],
    counts: Sequence[int],
    *,
    width: int,
) -> None:
    """Fill an empty cache of growing layers with the first tokens of some sequences.

    Args:
        cache: to fill.
        sequences: a row each.
        counts: tokens of each row; before them it is padded with zeros.
        width: tokens of the cache.
    """
    layers: list[Any] = cache.layers
    for index, layer in enumerate(layers):
        keys, values = (
            states.new_zeros(len(counts), states.shape[0], width, states.shape[2])
            for states in sequences[0][index]
        )
        for row, (states, count) in enumerate(zip(sequences, counts, strict=True)):
            keys[row, :, width - count :] = states[index][0][:, :count]
            values[row, :, width - count :] = states[index][1][:, :count]
        layer.update(keys, values)


def join_caches(caches: list[DynamicCache]) -> DynamicCache:
    """Return the rows of several caches as one, padded on their left."""
    first, *rest = caches
    for index, layer in enumerate(first.layers) if rest else ():
        same: list[Any] = [layer, *(cache.layers[index] for cache in rest)]
        if isinstance(layer, LinearAttentionLayer):
            for kind in ("conv_states", "recurrent_states"):
                _join_states([getattr(other, kind) for other in same])
        if not isinstance(layer, DynamicLayer):
            continue  # it has no keys
        keys = _joined([other.keys for other in same])
        values = _joined([other.values for other in same])
        if isinstance(layer, GrowingLayer):
            layer.hold(keys, values)
        else:
            layer.keys, layer.values = keys, values
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = max(other.cumulative_length for other in same)
    return first


def _join_states(states: list[dict[int, Any]]) -> None:
    """Put all rows into the first."""
    for number, state in states[0].items():
        if state is not None:
            states[0][number] = torch.cat([other[number] for other in states])


def _joined(states: list[torch.Tensor]) -> torch.Tensor:
    width = max(other.shape[2] for other in states)
    return torch.cat(
        [functional.pad(other, (0, 0, width - other.shape[2], 0)) for other in states]
    )
