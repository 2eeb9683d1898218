"""Decoding models built like Llama: by the few operations that a token takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from trainer.model.attention import attend_to_all
from trainer.model.kernels import rotated, signed
from trainer.model.loading import has_four_bits, merged_weight
from trainer.model.policy import Policy
from trainer.rollout.cache import States


class PlainLayer:
    """A layer's work before and after attention, for one new token of each row.

    It goes through the model's own maps, in any number format, adapters and all.
    """

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attn
        self.scale = float(attention.scaling)
        self._size = int(attention.head_dim)
        self.num_kv = attention.k_proj.out_features // self._size
        self._num_heads = attention.q_proj.out_features // self._size
        self._layer, self._attention, self._mlp = layer, attention, layer.mlp
        self._attention_norm = norm_of(layer.input_layernorm)
        self._mlp_norm = norm_of(layer.post_attention_layernorm)
        # Qwen3 normalises each head's queries and keys
        self._head_norms = (
            (norm_of(attention.q_norm), norm_of(attention.k_norm))
            if hasattr(attention, "q_norm")
            else None
        )

    def project_qkv(
        self, hidden: torch.Tensor, rotary: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Project from hidden [rows, H] and the tables' rows at the tokens' positions.

        Returns:
            (queries [rows, kv heads, sharing heads, d]: heads that share keys stand
            where a longer text's queries would; keys, then values
            [rows, 2 · kv heads, d]).
        """
        cos, sin = rotary
        inputs, shape = self._attention_norm(hidden), (len(hidden), -1, self._size)
        queries, keys, values = (part.view(shape) for part in self._qkv(inputs))
        if self._head_norms is not None:
            norm_queries, norm_keys = self._head_norms
            queries, keys = norm_queries(queries), norm_keys(keys)
        turned = rotated(torch.cat([queries, keys], dim=1), cos, sin)
        queries, keys = turned[:, : self._num_heads], turned[:, self._num_heads :]
        return queries.unflatten(1, (self.num_kv, -1)), torch.cat([keys, values], dim=1)

    def output(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output [rows, H] from its input and what attention
        brought.
        """
        hidden = hidden + self._attention.o_proj(attended.flatten(1))
        gate, up = self._gate_up(self._mlp_norm(hidden))
        inner = functional.silu(gate).mul_(up)
        found: torch.Tensor = hidden + self._mlp.down_proj(inner)
        return found

    def _qkv(self, inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return [linear(inputs) for linear in _qkv_of(self._layer)]

    def _gate_up(self, inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        return [linear(inputs) for linear in _gate_up_of(self._layer)]

    def permute_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the model's keys [..., d] in the order in which the layer has them."""
        return keys

    def restore_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """Copy the layer's keys [..., d] into the order in which the model has them."""
        return keys.clone()

    def rotary_tables(
        self, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Tables that rotate queries and keys, [positions, 1, ·]; of [positions, d]."""
        return cos[:, None], signed(sin)[:, None]


class WideLayer(PlainLayer):
    """Maps of the same input lie side by side, in copies: a GPU takes four products of
    a token where there were seven.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self._sizes = [linear.out_features for linear in _qkv_of(layer)]
        self._qkv_maps = _side_by_side(_qkv_of(layer))
        self._gate_up_maps = _side_by_side(_gate_up_of(layer))

    def _qkv(self, inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        projected: torch.Tensor = functional.linear(inputs, *self._qkv_maps)
        parts: Sequence[torch.Tensor] = projected.split(self._sizes, dim=1)
        return parts

    def _gate_up(self, inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        both: torch.Tensor = functional.linear(inputs, *self._gate_up_maps)
        return both.chunk(2, dim=1)


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
        weights = [self._paired(merged_weight(linear)) for linear in maps]
        weights.append(merged_weight(attention.v_proj))
        self._inputs = (torch.cat(weights) * gain).T
        self._inputs_bias = None
        if attention.q_proj.bias is not None:
            biases = [self._paired(linear.bias) for linear in maps]
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

    def project_qkv(
        self, hidden: torch.Tensor, rotary: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        projected = _mapped(
            _over_norm(hidden, self._attention_root), self._inputs, self._inputs_bias
        ).view(len(hidden), -1, self._size)
        turned = projected[:, : self._num_turned]
        if self._head_root is not None and self._head_gain is not None:
            turned.copy_(_over_norm(turned, self._head_root).mul_(self._head_gain))
        torch.view_as_complex(turned.unflatten(-1, (-1, 2))).mul_(rotary[0])
        queries = projected[:, : self._num_heads].unflatten(1, (self.num_kv, -1))
        return queries, projected[:, self._num_heads :]

    def output(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
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

    def permute_keys(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.index_select(-1, self._pairs)

    def restore_keys(self, keys: torch.Tensor) -> torch.Tensor:
        pairs: torch.Tensor = keys.unflatten(-1, (-1, 2))
        return pairs.transpose(-1, -2).flatten(-2)

    def rotary_tables(
        self, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        half = self._size // 2
        return (torch.complex(cos[:, None, :half], sin[:, None, :half]),)


Layer = PlainLayer | PackedLayer


def copied_bytes(policy: Policy) -> int:
    """Return the bytes of what `WideLayer` copies of a model; 0 where it may not."""
    body: Any = policy.body
    maps = [
        linear
        for layer in body.layers
        for linear in (*_qkv_of(layer), *_gate_up_of(layer))
    ]
    is_plain = all(type(linear) is torch.nn.Linear for linear in maps)  # no adapters
    weights = policy.num_parameters * policy.model.dtype.itemsize
    if not is_plain or weights > _MAX_WIDE_BYTES:
        return 0
    return sum(linear.weight.nbytes for linear in maps)


def _qkv_of(layer: Any) -> list[Any]:
    attention = layer.self_attn
    return [attention.q_proj, attention.k_proj, attention.v_proj]


def _gate_up_of(layer: Any) -> list[Any]:
    return [layer.mlp.gate_proj, layer.mlp.up_proj]


def _side_by_side(maps: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weights and biases of maps of the same input as those of one."""
    weight = torch.cat([linear.weight for linear in maps])
    has_bias = maps[0].bias is not None
    return weight, torch.cat([linear.bias for linear in maps]) if has_bias else None


def norm_of(layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a model's RMS norm as the model computes it, without a module's hooks."""
    return partial(
        functional.rms_norm,
        normalized_shape=layer.weight.shape,
        weight=layer.weight,
        eps=float(layer.variance_epsilon),
    )


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


# Up to so many bytes of weights, copies of them are made that take fewer operations: on
# a CPU, and on a GPU, where a larger model's products take longer than their beginning.
_MAX_PACKED_BYTES, _MAX_WIDE_BYTES = 64 * 2**20, 4 * 2**30
# Rows leave once this share of them has ended: sooner would cost more than it saves.
LEAVING_SHARE = 1 / 8
# Room for new tokens is made for so many at a time; where it costs more to move, for as
# many as there are, and this many at least.
_BLOCK, _LEAST_FIXED = 64, 512


class SharedPrompts:
    """Keys and values of prompts, each there once for all rows of its group.

    Queries of a group's rows, and of heads that share keys, are one sequence to the
    kernel, which so reads a prompt once for all of them.
    """

    def __init__(
        self, padding: torch.Tensor, owners: torch.Tensor, *, num_sharing: int
    ) -> None:
        """Take what `make_decoder` does; `num_sharing` heads share keys.

        The rows of a group lie one behind another. `states` are to be put in.
        """
        self.states: dict[Layer, torch.Tensor] = {}  # [P, L, 2 · kv heads, d]
        self.num_sharing = num_sharing
        num_prompts, self._width = padding.shape
        padded = (padding == 0).sum(dim=1)
        places = torch.arange(num_prompts, device=padding.device)
        self._begins = (places * self._width + padded).int()
        self._lengths = (self._width - padded).int()
        self._owners = owners
        self._count_rows()

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only; `rows` are their places."""
        self._owners = self._owners[rows]
        self._count_rows()

    def _count_rows(self) -> None:
        prompts, counts = self._owners.unique_consecutive(return_counts=True)
        counts *= self.num_sharing
        self._most_queries = int(counts.max())
        self._query_ends = functional.pad(counts.cumsum(dim=0), (1, 0)).int()
        self._key_begins = functional.pad(self._begins[prompts], (0, 1))
        self._keys_used = self._lengths[prompts]

    def attend(
        self, queries: torch.Tensor, layer: Layer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend to the prompts, by queries [rows · sharing, kv heads, d]; see
        `attend_to_all`.
        """
        tokens = self.states[layer].flatten(0, 1)
        return attend_to_all(
            queries,
            tokens[:, : layer.num_kv],
            tokens[:, layer.num_kv :],
            self._query_ends,
            self._key_begins,
            self._most_queries,
            self._width,
            scale=layer.scale,
            keys_used=self._keys_used,
        )

    def states_of(self, row: int, layer: Layer) -> torch.Tensor:
        """Return those of a row's prompt, [2 · kv heads, L, d]."""
        return self.states[layer][self._owners[row]].transpose(0, 1)


class LlamaDecoder:
    """Takes rows on by a token at a time; made again whenever the weights change.

    Keys and values of a layer lie in one buffer with room to come. Those of the prompts
    are the first there, unless rows share them.
    """

    def __init__(
        self,
        policy: Policy,
        cache: DynamicCache,
        padding: torch.Tensor,
        owners: torch.Tensor,
        *,
        max_new_tokens: int,
        is_fixed: bool = False,
        is_by_token: bool = False,
        shares_prompts: bool = False,
    ) -> None:
        """Take what `make_decoder` does.

        `is_fixed`: buffers move seldom, and what is not written yet will be looked at,
        so it has to be a number.
        `is_by_token`: all heads of a token lie side by side, as FlashAttention asks.
        `shares_prompts`: they are in `prompts`, which `attend` has to look at.
        """
        body: Any = policy.body
        weights = self._embedding = body.embed_tokens.weight
        kind: Callable[[Any], Layer] = PlainLayer
        dtype = policy.model.dtype
        is_small = policy.num_parameters * dtype.itemsize <= _MAX_PACKED_BYTES
        is_wide = dtype in (torch.float32, torch.float64)
        if is_small and is_wide and not has_four_bits(policy.model):
            kind = PackedLayer
        elif is_fixed and copied_bytes(policy) > 0:
            kind = WideLayer
        self.layers = [kind(layer) for layer in body.layers]
        self._norm = norm_of(body.norm)
        width = padding.shape[1]
        positions = torch.arange(width + max_new_tokens, device=policy.device)
        self.prompts: SharedPrompts | None = None
        if shares_prompts:
            num_sharing = (
                policy.model.config.num_attention_heads // self.layers[0].num_kv
            )
            self.prompts = SharedPrompts(padding, owners, num_sharing=num_sharing)
        self.length = 0 if shares_prompts else width  # of what a row has itself
        self._last = self.length + max_new_tokens
        self._is_fixed = is_fixed
        self.is_by_token = is_by_token
        self.padding = None if shares_prompts or padding.all() else padding[owners]
        self.held = [
            self._buffer_of(layer, states, owners)
            for layer, states in zip(self.layers, cache.layers, strict=True)
        ]
        cos, sin = body.rotary_emb(weights[:1], positions[None])
        self._rotary = self.layers[0].rotary_tables(cos[0], sin[0])
        self._bias = self._new_bias()

    @property
    def room(self) -> int:
        """Tokens of a row that there is room for."""
        return self.held[0].shape[2]

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return last hidden states [rows, H] after one more token of each row.

        They are good until the next step, which may write over them.

        Args:
            chosen: [rows], the tokens.
            positions: [rows], their places in their own sequences.
        """
        place = self.advance()
        bias = None if self._bias is None else self._bias[..., : self.length]

        def put(held: torch.Tensor, states: torch.Tensor) -> None:
            held[:, :, place] = states

        attend = partial(attend_densely, span=self.length, bias=bias)
        return self.forward(chosen, positions, put, attend)

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
        attend: Callable[[torch.Tensor, torch.Tensor, Layer], torch.Tensor],
    ) -> torch.Tensor:
        """Return last hidden states [rows, H] of one more token of each row.

        Args:
            chosen: [rows], the tokens.
            positions: [rows], their places in their own sequences.
            put: writes a layer's keys and values [rows, 2 · kv heads, d] where they
                belong in its buffer.
            attend: what a layer's queries find in its buffer: `attend_densely`, for
                instance.
        """
        hidden = functional.embedding(chosen, self._embedding)
        rotary = [table[positions] for table in self._rotary]
        for layer, held in zip(self.layers, self.held, strict=True):
            queries, states = layer.project_qkv(hidden, rotary)
            put(held, states)
            hidden = layer.output(hidden, attend(queries, held, layer))
        return self._norm(hidden)

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        """Return whether rows that have ended are to leave, with so many tokens to
        come.
        """
        return num_ended >= LEAVING_SHARE * num_rows

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only; `rows` are their places."""
        self._move(room=self.room, rows=rows)
        if self.prompts is not None:
            self.prompts.keep(rows)
        if self.padding is not None:
            self.padding = self.padding[rows]
            self._bias = self._new_bias()

    def states_of(self, row: int, span: slice) -> States:
        """Copy a row's keys and values in a span of the cache, as the model has them.

        The cache must be one of growing layers.
        """
        found = []
        for layer, held in zip(self.layers, self.held, strict=True):
            states = held[row]
            if self.prompts is not None:
                prompt = self.prompts.states_of(row, layer)
                states = torch.cat([prompt, states], dim=1)
            keys, values = states[: layer.num_kv, span], states[layer.num_kv :, span]
            found.append((layer.restore_keys(keys), values.clone()))
        return found

    def _move(self, *, room: int, rows: torch.Tensor | None = None) -> None:
        for place, held in enumerate(self.held):  # one after another, to save memory
            count, heads, _, size = held.shape
            count = count if rows is None else len(rows)
            buffer = self._new_buffer(held, (count, heads, room, size))
            if rows is None:
                buffer[:, :, : self.length] = held[:, :, : self.length]
            else:
                torch.index_select(
                    held[:, :, : self.length], 0, rows, out=buffer[:, :, : self.length]
                )
            self.held[place] = self._tidied(buffer)

    def _room_for_more(self) -> int:
        """Whole blocks, with room for a token at least."""
        wanted = self.length + 1
        if self._is_fixed:
            wanted = max(wanted, min(self._last, max(2 * self.length, _LEAST_FIXED)))
        return -(-wanted // _BLOCK) * _BLOCK

    def _buffer_of(
        self, layer: Layer, states: Any, owners: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's keys, then values, of its prompt: [rows, 2 · kv heads,
        room, d]. Where prompts are shared they are put there, and rows have none.
        """
        keys, values = layer.permute_keys(states.keys), states.values
        _, heads, length, size = keys.shape
        shape = (len(owners), 2 * heads, self._room_for_more(), size)
        buffer = self._new_buffer(keys, shape)
        if self.prompts is not None:
            both = torch.cat([keys, values], dim=1).transpose(1, 2)
            self.prompts.states[layer] = both.contiguous()
        else:
            torch.index_select(keys, 0, owners, out=buffer[:, :heads, :length])
            torch.index_select(values, 0, owners, out=buffer[:, heads:, :length])
        states.keys = states.values = None  # the prompts' own are not needed any more
        return self._tidied(buffer)

    def _new_buffer(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        rows, heads, room, size = shape
        if self.is_by_token:
            return like.new_empty(rows, room, heads, size).transpose(1, 2)
        return like.new_empty(rows, heads, room, size)

    def _tidied(self, held: torch.Tensor) -> torch.Tensor:
        if self._is_fixed:
            held[:, :, self.length :] = 0.0
        return held

    def _new_bias(self) -> torch.Tensor | None:
        if self.padding is None:
            return None
        return bias_of(self.padding, self._last, dtype=self.held[0].dtype)


def attend_densely(
    queries: torch.Tensor,
    held: torch.Tensor,
    layer: Layer,
    *,
    span: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return what one token's queries of each row bring, [rows, kv heads, sharing, d].

    Args:
        queries: of that shape as well.
        held: keys, then values, [rows, 2 · kv heads, room, d].
        layer: whose they are.
        span: so many places are looked at.
        bias: added to the logits, [rows, 1, 1, span].
    """
    seen = held[:, :, :span]
    return functional.scaled_dot_product_attention(
        queries,
        seen[:, : layer.num_kv],
        seen[:, layer.num_kv :],
        attn_mask=bias,
        scale=layer.scale,
    )


def bias_of(padding: torch.Tensor, room: int, *, dtype: torch.dtype) -> torch.Tensor:
    """-inf where a row's prompt is padded, and 0 from there on; [rows, 1, 1, room]."""
    hides = functional.pad(padding, (0, room - padding.shape[1]), value=1) == 0
    bias = torch.zeros(hides.shape, dtype=dtype, device=padding.device)
    return bias.masked_fill_(hides, -torch.inf)[:, None, None]
