"""Attention among the tokens of one packed row: see `model.packing`.

On a GPU one kernel takes all sequences of the row, with as many queries and keys as
each has (`torch.nn.attention.varlen`, FlashAttention: arXiv:2205.14135). Elsewhere it
goes through `scaled_dot_product_attention` in blocks of like length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

# A block ends where a completion is shorter than this share of its longest, if it has
# as many rows: smaller blocks would cost more than their padding.
_SHORTEST_SHARE, _LEAST_ROWS = 0.75, 8
_LARGEST_HEAD = 256  # that FlashAttention takes


class Attention(Protocol):
    """Attention of a row's tokens to those before them in their own sequence."""

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """Return what each token's attention brings, [N, heads · values' d].

        Args:
            queries: [N, heads, d].
            keys: [N, kv heads, d].
            values: [N, kv heads, d], or another size than that of queries and keys.
            scale: of the attention's logits.
            window: a token sees itself and `window - 1` before it; None: all.
        """


# --- one kernel for all sequences


@dataclass(frozen=True, kw_only=True)
class VarlenAttention:
    """S sequences: the prompts, then the completions, each behind its prompt's keys.

    A completion of T tokens has T queries and P + T keys. FlashAttention aligns their
    ends, so each query sees the whole prompt and its own completion so far.
    """

    query_ends: torch.Tensor  # [S + 1], int32: where each one's queries end
    key_ends: torch.Tensor  # [S + 1], int32
    most_queries: int
    most_keys: int
    keys: Copies  # the row's token at each place of the keys

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        # the kernel takes values of the queries' size only
        size = values.shape[-1]
        values = functional.pad(values, (0, queries.shape[-1] - size))
        attended = varlen_attention(
            queries,
            self.keys.of(keys),
            self.keys.of(values),
            self.query_ends,
            self.key_ends,
            self.most_queries,
            self.most_keys,
            scale=scale,
            window=window,
        )
        return attended[..., :size].flatten(1)


def varlen_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scale: float,
    window: int | None = None,
    keys_used: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of sequences that lie one behind another, by torch's kernel.

    `keys_used`: int32 [S], how many keys of each are looked at, from its first on.
    """
    options = {} if keys_used is None else {"seqused_k": keys_used}
    attended = _kernel()(
        queries,
        keys,
        values,
        query_ends,
        key_ends,
        most_queries,
        most_keys,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    assert isinstance(attended, torch.Tensor)  # else its log-sum-exp comes along
    return attended


def attend_to_all(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_ends: torch.Tensor,
    key_begins: torch.Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scale: float,
    keys_used: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a sequence's queries to all of its keys, for `joined`.

    Args:
        queries: [N, heads, d].
        keys: [M, heads, d].
        values: [M, heads, d].
        query_ends: int32 [S + 1].
        key_begins: int32 [S + 1], of which the last is not looked at.
        most_queries: of a sequence.
        most_keys: of a sequence.
        scale: of the attention's logits.
        keys_used: int32 [S], from a sequence's first on; at least one.

    Returns:
        (what it brings [N, heads, d]; log Σ exp of its logits, float32 [heads, N]).
    """
    from torch.nn.attention.varlen import AuxRequest  # noqa: PLC0415 - see `_kernel`

    attended, log_sums = _kernel()(
        queries,
        keys,
        values,
        query_ends,
        key_begins,
        most_queries,
        most_keys,
        scale=scale,
        window_size=(-1, -1),
        seqused_k=keys_used,
        return_aux=AuxRequest(lse=True),
    )
    return attended, log_sums


def joined(
    attended: torch.Tensor,
    log_sums: torch.Tensor,
    others: torch.Tensor,
    other_log_sums: torch.Tensor,
) -> torch.Tensor:
    """Return attention to two sets of keys together, from `attend_to_all` of each.

    With s the sums of exponentials, it is (s₁·a₁ + s₂·a₂) / (s₁ + s₂).
    """
    share = torch.sigmoid(log_sums - other_log_sums).T[..., None]
    both = torch.lerp(others.to(share.dtype), attended.to(share.dtype), share)
    return both.to(attended.dtype)


def takes_keys_used() -> bool:
    """Return whether this torch's kernel can look at the first keys of a sequence."""
    return "seqused_k" in inspect.signature(_kernel()).parameters


@cache
def _kernel() -> Callable[..., Any]:
    """torch's, with fewer key heads than query heads, which 2.11 takes without a flag.

    It is loaded where it is first asked for.
    """
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - for a GPU alone

    names = inspect.signature(varlen_attn).parameters
    flags: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in names else {}
    return partial(varlen_attn, **flags)


def takes_varlen(model: PreTrainedModel, head_sizes: Iterable[int]) -> bool:
    """Return whether the kernel takes heads of these sizes where a model is."""
    return (
        model.device.type == "cuda"
        and model.dtype in (torch.bfloat16, torch.float16)
        and all(size <= _LARGEST_HEAD and size % 8 == 0 for size in head_sizes)
    )


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Rows taken by an index [M] in which each of N rows occurs at least once.

    The gradient sums a row's copies in float32 and in a fixed order; torch's own sums
    them in the rows' dtype and in no fixed order.
    """

    index: torch.Tensor  # [M]
    first: torch.Tensor  # [N], the place of each row's first copy
    shared: torch.Tensor  # [R], rows with more copies
    places: torch.Tensor  # [R · C], those of their copies, 0 where there are fewer
    weights: torch.Tensor  # [R, C], 1 where there is a copy

    @classmethod
    def make(cls, index: np.ndarray[Any, Any], *, device: torch.device) -> Copies:
        counts = np.bincount(index)
        order = np.argsort(index, kind="stable")  # copies of each row, row after row
        starts = np.cumsum(counts) - counts
        shared = np.flatnonzero(counts > 1)
        offsets = np.arange(counts[shared].max(initial=0))
        is_copy = offsets < counts[shared, None]
        places = np.where(is_copy, starts[shared, None] + offsets, 0)
        return cls(
            index=sent(index, device),
            first=sent(order[starts], device),
            shared=sent(shared, device),
            places=sent(order[places].ravel(), device),
            weights=sent(is_copy.astype(np.float32), device),
        )

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [N, …] as their copies [M, …]."""
        copied: torch.Tensor = _Copied.apply(rows, self)  # type: ignore[no-untyped-call]  # torch's
        return copied


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, copies: Copies) -> torch.Tensor:
        ctx.copies = copies
        return rows.index_select(0, copies.index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        copies: Copies = ctx.copies
        summed = grad.index_select(0, copies.first)
        if len(copies.shared) > 0:
            wide = torch.promote_types(grad.dtype, torch.float32)
            parts = grad.index_select(0, copies.places)
            parts = parts.view(*copies.weights.shape, -1)
            weights = copies.weights.to(grad.dtype)[..., None]
            sums = (parts * weights).sum(dim=1, dtype=wide).to(grad.dtype)
            summed.index_copy_(0, copies.shared, sums.view(-1, *grad.shape[1:]))
        return summed, None


def sent(
    values: torch.Tensor | np.ndarray[Any, Any], device: torch.device
) -> torch.Tensor:
    """Return values on a device; a GPU takes them while the host goes on."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


# --- blocks of like length


@dataclass(frozen=True, kw_only=True)
class Block:
    """B sequences of at most T tokens that go through attention together.

    Their tokens are the next ones of the row, behind those of the block before.
    """

    shape: tuple[int, int]  # B, T
    gather: torch.Tensor  # [B·T], the block's token at each place
    scatter: torch.Tensor  # the place of each token
    padding: torch.Tensor  # places that no token has
    prompts: tuple[int, ...]  # length of each sequence's prompt; empty: it is a prompt
    owners: torch.Tensor | None  # [B, prompts], 1 at each sequence's prompt
    bias: torch.Tensor | None  # [B, 1, T, keys]; None: each sees what is before it
    windows: dict[int, torch.Tensor] = field(default_factory=dict)  # the bias of each

    @property
    def num_tokens(self) -> int:
        return len(self.scatter)

    def pad(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return values of the block's tokens as [B, T, …]; anything on padding."""
        padded: torch.Tensor = Moved.apply(tokens, self.gather, self.scatter, None)  # type: ignore[no-untyped-call]  # torch's
        return padded.view(*self.shape, *tokens.shape[1:])

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """Return values [B, T, …] as those of the block's tokens."""
        tokens: torch.Tensor = Moved.apply(  # type: ignore[no-untyped-call]  # torch's
            values.flatten(0, 1), self.scatter, self.gather, self.padding
        )
        return tokens

    def with_prompt(
        self, own: torch.Tensor, prompts: torch.Tensor | None
    ) -> torch.Tensor:
        """Return keys or values [B, T, …] behind those of each sequence's prompt [P, L,
        …].
        """
        if self.owners is None or prompts is None:
            return own
        # a product with ones and zeros copies, and its gradient adds up
        shared = self.owners @ prompts.flatten(1)
        return torch.cat([shared.unflatten(1, prompts.shape[1:]), own], dim=1)

    def bias_of(
        self, window: int | None, *, most_keys: int, dtype: torch.dtype
    ) -> torch.Tensor | None:
        """Give what is added to the attention's logits; `most_keys` of all prompts."""
        if window is None:
            return self.bias
        if window not in self.windows:
            bias = _bias(self.shape, self.prompts, most_keys=most_keys, window=window)
            self.windows[window] = sent(bias.to(dtype), self.gather.device)
        return self.windows[window]


@dataclass(frozen=True)
class BlockAttention:
    """Attention in blocks, the prompts' first."""

    blocks: tuple[Block, ...]

    def __call__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        sizes = [block.num_tokens for block in self.blocks]
        parts = zip(
            *(tensor.split(sizes) for tensor in (queries, keys, values)), strict=True
        )
        prompts: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None)
        most_keys = self.blocks[0].shape[1]
        attended_blocks = []
        for block, (asking, *answering) in zip(self.blocks, parts, strict=True):
            own_keys, own_values = (
                block.pad(block_values) for block_values in answering
            )
            bias = block.bias_of(window, most_keys=most_keys, dtype=queries.dtype)
            attended = functional.scaled_dot_product_attention(
                block.pad(asking).transpose(1, 2),
                block.with_prompt(own_keys, prompts[0]).transpose(1, 2),
                block.with_prompt(own_values, prompts[1]).transpose(1, 2),
                attn_mask=bias,
                is_causal=bias is None,
                scale=scale,
                enable_gqa=True,
            )
            if prompts[0] is None:
                prompts = own_keys, own_values
            attended_blocks.append(block.unpad(attended.transpose(1, 2).flatten(2)))
        return torch.cat(attended_blocks)


class Moved(torch.autograd.Function):
    """Rows taken by an index whose inverse is known, so that gradients are taken too.

    torch itself would add them up one by one, as if a row could be taken twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        index: torch.Tensor,
        inverse: torch.Tensor,
        untouched: torch.Tensor | None,  # rows that the index leaves out
    ) -> torch.Tensor:
        ctx.inverse, ctx.untouched = inverse, untouched
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        moved = grad.index_select(0, ctx.inverse)
        if ctx.untouched is not None and len(ctx.untouched) > 0:
            moved.index_fill_(0, ctx.untouched, 0.0)
        return moved, None, None, None


# --- making them


def make_attention(
    prompts: Sequence[int],
    completions: Sequence[int],
    owners: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    is_varlen: bool,
) -> Attention:
    """Return the attention of a row of prompts and completions.

    Args:
        prompts: how long each is, in falling order.
        completions: how long each is, in falling order; 0 has no token.
        owners: the prompt of each completion.
        device: where the model is.
        dtype: of its activations.
        is_varlen: whether one kernel takes all sequences.
    """
    if is_varlen:
        return _varlen(prompts, completions, owners, device)
    return BlockAttention(
        (
            _block(prompts, device=device),
            *(
                _block(
                    completions[span],
                    owners=owners[span],
                    prompts=prompts,
                    device=device,
                    dtype=dtype,
                )
                for span in _spans(completions)
            ),
        )
    )


def _varlen(
    prompts: Sequence[int],
    completions: Sequence[int],
    owners: Sequence[int],
    device: torch.device,
) -> VarlenAttention:
    written = [(n, owner) for n, owner in zip(completions, owners, strict=True) if n]
    queries = [*prompts, *(count for count, _ in written)]
    keys = [*prompts, *(prompts[owner] + count for count, owner in written)]
    starts = [0, *accumulate(queries)]
    spans = [(starts[place], count) for place, count in enumerate(prompts)]
    index = [np.arange(start, start + count) for start, count in spans]
    for place, (count, owner) in enumerate(written, start=len(prompts)):
        index.append(index[owner])
        index.append(np.arange(starts[place], starts[place] + count))
    ends = (
        np.array([0, *accumulate(counts)], dtype=np.int32) for counts in (queries, keys)
    )
    query_ends, key_ends = (sent(offsets, device) for offsets in ends)
    return VarlenAttention(
        query_ends=query_ends,
        key_ends=key_ends,
        most_queries=max(queries),
        most_keys=max(keys),
        keys=Copies.make(np.concatenate(index), device=device),
    )


def _spans(lengths: Sequence[int]) -> list[slice]:
    """Cuts of falling lengths into blocks; what has no token is in none."""
    spans, first = [], 0
    count = sum(length > 0 for length in lengths)
    for place in range(1, count + 1):
        is_full = place - first >= _LEAST_ROWS and place < count
        if place == count or (
            is_full and lengths[place] < _SHORTEST_SHARE * lengths[first]
        ):
            spans.append(slice(first, place))
            first = place
    return spans


def _block(
    lengths: Sequence[int],
    *,
    device: torch.device,
    owners: Sequence[int] | None = None,
    prompts: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
) -> Block:
    shape = count, width = len(lengths), max(lengths)
    is_token = torch.arange(width) < torch.tensor(lengths)[:, None]
    scatter = is_token.flatten().nonzero().squeeze(1)
    gather = torch.zeros(count * width, dtype=torch.long)
    gather[scatter] = torch.arange(len(scatter))
    bias = chosen = None
    own: tuple[int, ...] = ()
    if owners is not None:
        chosen = functional.one_hot(torch.tensor(owners), len(prompts)).to(dtype)
        chosen = sent(chosen, device)
        own = tuple(prompts[owner] for owner in owners)
        bias = sent(_bias(shape, own, most_keys=max(prompts)).to(dtype), device)
    return Block(
        shape=shape,
        gather=sent(gather, device),
        scatter=sent(scatter, device),
        padding=sent((~is_token).flatten().nonzero().squeeze(1), device),
        prompts=own,
        owners=chosen,
        bias=bias,
    )


def _bias(
    shape: tuple[int, int],
    prompts: Sequence[int],
    *,
    most_keys: int,
    window: int | None = None,
) -> torch.Tensor:
    """Return 0 where a token sees a key and -inf elsewhere, [B, 1, T, keys]."""
    count, width = shape
    places = torch.arange(width)
    gap = places[:, None] - places  # to a key of the sequence's own tokens, [T, T]
    own = (gap >= 0) & (gap < (window or width))
    sees = own.expand(count, width, width)
    if prompts:
        lengths = torch.tensor(prompts)[:, None, None]
        keys = torch.arange(most_keys)
        before = (keys < lengths).expand(count, width, most_keys)
        if window is not None:
            before = before & (lengths + places[:, None] - keys < window)
        sees = torch.cat([before, sees], dim=2)
    return torch.zeros(sees.shape).masked_fill_(~sees, -torch.inf)[:, None]
