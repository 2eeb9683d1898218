"""The layers of models built like Llama, as decoding a token at a time needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

from trainer.model.adapter_weights import merged_weight
from trainer.model.kernels import normed, rotated, signed


class Layer(Protocol):
    """What a layer does before and after attention, for one new token of each row."""

    scale: float  # of the attention's logits
    num_kv: int  # key-value heads

    def ask(
        self, hidden: torch.Tensor, turns: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """From hidden [rows, H] and the rows of `turning` at the tokens' positions.

        Returns:
            (queries [rows, kv heads, sharing heads, d]: heads that share keys stand
            where a longer text's queries would; keys, then values
            [rows, 2 · kv heads, d]).
        """
        ...

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output [rows, H] from its input and what attention brought."""
        ...

    def arranged(self, keys: torch.Tensor) -> torch.Tensor:
        """The model's keys [..., d] in the order in which the layer has them."""
        ...

    def turning(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What turns queries and keys, [positions, 1, ·], from [positions, d]."""
        ...


class PlainLayer:
    """Goes through the model's own maps, in any number format, adapters and all."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.scale = float(attention.scaling)
        self._size = int(attention.head_dim)
        self.num_kv = attention.k_proj.out_features // self._size
        self._num_heads = attention.q_proj.out_features // self._size
        self._attention, self._mlp = attention, mlp
        self._attention_norm = Norm(layer.input_layernorm)
        self._mlp_norm = Norm(layer.post_attention_layernorm)
        # Qwen3 normalises each head's queries and keys
        self._head_norms = (
            (Norm(attention.q_norm), Norm(attention.k_norm))
            if hasattr(attention, "q_norm")
            else None
        )

    def ask(
        self, hidden: torch.Tensor, turns: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = turns
        inputs, shape = self._attention_norm(hidden), (len(hidden), -1, self._size)
        queries = self._attention.q_proj(inputs).view(shape)
        keys = self._attention.k_proj(inputs).view(shape)
        values = self._attention.v_proj(inputs).view(shape)
        if self._head_norms is not None:
            norm_queries, norm_keys = self._head_norms
            queries, keys = norm_queries(queries), norm_keys(keys)
        turned = rotated(torch.cat([queries, keys], dim=1), cos, sin)
        queries, keys = turned[:, : self._num_heads], turned[:, self._num_heads :]
        grouped = queries.unflatten(1, (self.num_kv, -1))
        return grouped, torch.cat([keys, values], dim=1)

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self._attention.o_proj(attended.flatten(1))
        inputs, mlp = self._mlp_norm(hidden), self._mlp
        inner = functional.silu(mlp.gate_proj(inputs)).mul_(mlp.up_proj(inputs))
        found: torch.Tensor = hidden + mlp.down_proj(inner)
        return found

    def arranged(self, keys: torch.Tensor) -> torch.Tensor:
        return keys

    def turning(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return cos[:, None], signed(sin)[:, None]


class PackedLayer:
    """Copies of the weights, changed so that a token takes the fewest operations.

    A small model's token is little arithmetic, and each operation costs the same to
    begin as the arithmetic itself takes. So maps of the same input lie side by side;
    a norm's weights are multiplied into the map behind it, which leaves the division
    x / √(Σx² + n·ε); and the two numbers of a head that rotate together lie side by
    side, so that a rotation is one product of complex numbers. For float32 or float64.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.scale = float(attention.scaling)
        self._size = size = int(attention.head_dim)
        self.num_kv = attention.k_proj.out_features // size
        self._num_heads = attention.q_proj.out_features // size
        self._num_turned = self._num_heads + self.num_kv
        first = torch.arange(size // 2, device=layer.input_layernorm.weight.device)
        self._pairs = torch.stack([first, first + size // 2], dim=1).flatten()

        self._attention_root, gain = _unit_norm(layer.input_layernorm)
        maps = [attention.q_proj, attention.k_proj]
        weights = [self._paired(merged_weight(each)) for each in maps]
        weights.append(merged_weight(attention.v_proj))
        self._inputs = (torch.cat(weights) * gain).T
        self._inputs_bias = None
        if attention.q_proj.bias is not None:
            biases = [self._paired(each.bias) for each in maps]
            self._inputs_bias = torch.cat([*biases, attention.v_proj.bias])
        self._head_root = self._head_gain = None
        if hasattr(attention, "q_norm"):
            self._head_root, queries = _unit_norm(attention.q_norm)
            _, keys = _unit_norm(attention.k_norm)
            self._head_gain = torch.cat(
                [
                    queries[self._pairs].expand(self._num_heads, -1),
                    keys[self._pairs].expand(self.num_kv, -1),
                ]
            )
        # attention leaves the sharing heads before the key-value heads
        output = merged_weight(attention.o_proj)
        output = output.unflatten(1, (self.num_kv, -1, size))
        self._output = output.transpose(1, 2).flatten(1).T
        self._output_bias = attention.o_proj.bias
        self._mlp_root, gain = _unit_norm(layer.post_attention_layernorm)
        wide = [merged_weight(mlp.gate_proj), merged_weight(mlp.up_proj)]
        self._wide = (torch.cat(wide) * gain).T
        self._wide_bias = None
        if mlp.gate_proj.bias is not None:
            self._wide_bias = torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias])
        self._down, self._down_bias = merged_weight(mlp.down_proj).T, mlp.down_proj.bias

    def _paired(self, heads: torch.Tensor) -> torch.Tensor:
        by_head: torch.Tensor = heads.unflatten(0, (-1, self._size))
        return by_head.index_select(1, self._pairs).flatten(0, 1)

    def ask(
        self, hidden: torch.Tensor, turns: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = _mapped(
            _over_norm(hidden, self._attention_root), self._inputs, self._inputs_bias
        ).view(len(hidden), -1, self._size)
        turned = found[:, : self._num_turned]
        if self._head_root is not None and self._head_gain is not None:
            turned.copy_(_over_norm(turned, self._head_root).mul_(self._head_gain))
        torch.view_as_complex(turned.unflatten(-1, (-1, 2))).mul_(turns[0])
        queries = found[:, : self._num_heads].unflatten(1, (self.num_kv, -1))
        return queries, found[:, self._num_heads :]

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        attended = attended.transpose(1, 2).flatten(1)
        hidden = torch.addmm(hidden, attended, self._output)
        if self._output_bias is not None:
            hidden += self._output_bias
        inputs = _over_norm(hidden, self._mlp_root)
        gate, up = _mapped(inputs, self._wide, self._wide_bias).chunk(2, dim=1)
        hidden = torch.addmm(hidden, functional.silu(gate).mul_(up), self._down)
        if self._down_bias is not None:
            hidden += self._down_bias
        return hidden

    def arranged(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.index_select(-1, self._pairs)

    def turning(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = self._size // 2
        return (torch.complex(cos[:, None, :half], sin[:, None, :half]),)


class Norm:
    """A model's RMS norm as the model computes it."""

    def __init__(self, layer: Any) -> None:
        self._weight = layer.weight
        self._epsilon = float(layer.variance_epsilon)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        found, _ = normed(hidden, self._weight, self._epsilon)
        return found


def _unit_norm(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """√(n·ε) and √n · w, for x · w / √(mean(x²) + ε) = x / √(Σx² + n·ε) · √n · w."""
    weight = layer.weight
    size = weight.numel()
    root = weight.new_tensor((size * layer.variance_epsilon) ** 0.5)
    return root, weight * size**0.5


def _over_norm(inputs: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """x / √(Σx² + root²) over the last dimension."""
    length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
    return inputs / torch.hypot(length, root)


def _mapped(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return inputs @ weight if bias is None else torch.addmm(bias, inputs, weight)
