"""Where the tokens of a micro-batch lie when none is padding and prompts are shared.

All tokens lie in one row: first each distinct prompt, once, then the completions, the
longest first. What a layer does to each token alone it does to this row. Attention sees
the row in blocks: the prompts, and completions of like length, each of which attends to
its prompt too. A completion's last token predicts nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch.nn import functional

# A block ends where a completion is shorter than this share of its longest, if it has
# as many rows: smaller blocks would cost more than their padding.
_SHORTEST_SHARE, _LEAST_ROWS = 0.75, 8


@dataclass(frozen=True, kw_only=True)
class Block:
    """B sequences of at most T tokens that go through attention together.

    Their tokens are the next ones of the row, behind those of the block before.
    """

    shape: tuple[int, int]  # B, T
    gather: torch.Tensor  # [B·T], the block's token at each place
    scatter: torch.Tensor  # the place of each token
    padding: torch.Tensor  # places that no token has
    owners: torch.Tensor | None  # [B, P], 1 at each sequence's prompt; None: a prompt
    bias: torch.Tensor | None  # [B, 1, T, keys]; None: each sees what is before it

    @property
    def num_tokens(self) -> int:
        return len(self.scatter)

    def pad(self, tokens: torch.Tensor) -> torch.Tensor:
        """Values of the block's tokens as [B, T, …]; anything on padding."""
        found: torch.Tensor = _Moved.apply(tokens, self.gather, self.scatter, None)  # type: ignore[no-untyped-call]  # torch's
        return found.view(*self.shape, *tokens.shape[1:])

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """Values [B, T, …] as those of the block's tokens."""
        found: torch.Tensor = _Moved.apply(  # type: ignore[no-untyped-call]  # torch's
            values.flatten(0, 1), self.scatter, self.gather, self.padding
        )
        return found

    def with_prompt(
        self, own: torch.Tensor, prompts: torch.Tensor | None
    ) -> torch.Tensor:
        """Keys or values [B, T, …] behind those of each sequence's prompt [P, L, …]."""
        if self.owners is None or prompts is None:
            return own
        # a product with ones and zeros copies, and its gradient adds up
        shared = self.owners @ prompts.flatten(1)
        return torch.cat([shared.unflatten(1, prompts.shape[1:]), own], dim=1)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch's tokens in one row of N."""

    input_ids: torch.Tensor  # [N]
    positions: torch.Tensor  # [N]
    asked: torch.Tensor  # [K], tokens of the row that something is predicted from
    answers: torch.Tensor  # [N], where among these a token is, if it is
    unasked: torch.Tensor  # [N - K], the others: most of the prompts'
    places: torch.Tensor  # [M], where among the asked each scored token is predicted
    blocks: tuple[Block, ...]  # the prompts first

    def only_asked(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of hidden states [N, H] those that something is predicted from, [K, H]."""
        found: torch.Tensor = _Moved.apply(  # type: ignore[no-untyped-call]  # torch's
            hidden, self.asked, self.answers, self.unasked
        )
        return found

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float,
    ) -> torch.Tensor:
        """What each token's attention brings, [N, heads · d].

        Args:
            queries: [N, heads, d].
            keys: [N, kv heads, d].
            values: [N, kv heads, d].
            scale: of the attention's logits.
        """
        sizes = [block.num_tokens for block in self.blocks]
        parts = zip(
            *(each.split(sizes) for each in (queries, keys, values)), strict=True
        )
        prompts: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None)
        found = []
        for block, (asking, *answering) in zip(self.blocks, parts, strict=True):
            own_keys, own_values = (block.pad(each) for each in answering)
            attended = functional.scaled_dot_product_attention(
                block.pad(asking).transpose(1, 2),
                block.with_prompt(own_keys, prompts[0]).transpose(1, 2),
                block.with_prompt(own_values, prompts[1]).transpose(1, 2),
                attn_mask=block.bias,
                is_causal=block.bias is None,
                scale=scale,
                enable_gqa=True,
            )
            if prompts[0] is None:
                prompts = own_keys, own_values
            found.append(block.unpad(attended.transpose(1, 2).flatten(2)))
        return torch.cat(found)


class _Moved(torch.autograd.Function):
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
        found = grad.index_select(0, ctx.inverse)
        if ctx.untouched is not None and len(ctx.untouched) > 0:
            found.index_fill_(0, ctx.untouched, 0.0)
        return found, None, None, None


def make_layout(
    sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    firsts: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Layout:
    """The layout of some prompts with their completions.

    Args:
        sequences: token ids of a prompt and of its completion, both at least one.
        firsts: for each, the offset in prompt and completion of the first token that is
            scored; all behind it are.
        device: where the model is.
        dtype: of its activations.
    """
    prompts = list(dict.fromkeys(prompt for prompt, _ in sequences))
    prompts.sort(key=len, reverse=True)
    number = {prompt: place for place, prompt in enumerate(prompts)}
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row][1]))
    written = [sequences[row][1][:-1] for row in order]
    owners = [number[sequences[row][0]] for row in order]

    rows = [*prompts, *written]
    starts = [0, *accumulate(len(ids) for ids in rows)]
    begin = dict(zip(order, starts[len(prompts) : -1], strict=True))
    scored: list[range] = []
    for row, ((prompt, completion), first) in enumerate(
        zip(sequences, firsts, strict=True)
    ):
        start = starts[number[prompt]]
        scored.append(range(start + first - 1, start + len(prompt)))
        scored.append(range(begin[row], begin[row] + len(completion) - 1))
    lengths = [len(prompt) for prompt in prompts]
    blocks = [
        _block(lengths, device=device),
        *(
            _block(
                [len(ids) for ids in written[span]],
                owners=owners[span],
                prompts=lengths,
                device=device,
                dtype=dtype,
            )
            for span in _spans([len(ids) for ids in written])
        ),
    ]
    offsets = [0] * len(prompts) + [lengths[owner] for owner in owners]
    # completions of one prompt are all begun from its last token
    asked, places = _joined(scored).unique(return_inverse=True)
    answers = torch.zeros(starts[-1], dtype=torch.long)
    answers[asked] = torch.arange(len(asked))
    is_asked = torch.zeros(starts[-1], dtype=torch.bool)
    is_asked[asked] = True
    return Layout(
        input_ids=token_tensor(rows).to(device),
        positions=_joined(
            range(offset, offset + len(ids))
            for ids, offset in zip(rows, offsets, strict=True)
        ).to(device),
        asked=asked.to(device),
        answers=answers.to(device),
        unasked=(~is_asked).nonzero().squeeze(1).to(device),
        places=places.to(device),
        blocks=tuple(blocks),
    )


def token_tensor(rows: Iterable[Sequence[int]]) -> torch.Tensor:
    """The tokens of some rows, one row behind another, on the CPU."""
    # torch would take several times as long over a list
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64))


def _joined(ranges: Iterable[range]) -> torch.Tensor:
    """The numbers of some ranges, one range behind another."""
    ends = torch.tensor([(each.start, each.stop) for each in ranges])
    counts = ends[:, 1] - ends[:, 0]
    before = counts.cumsum(0) - counts
    return torch.repeat_interleave(ends[:, 0] - before, counts) + torch.arange(
        int(counts.sum())
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
    count, width = len(lengths), max(lengths)
    ends = torch.tensor(lengths)[:, None]
    places = torch.arange(width)
    is_token = places < ends
    scatter = is_token.flatten().nonzero().squeeze(1)
    gather = torch.zeros(count * width, dtype=torch.long)
    gather[scatter] = torch.arange(len(scatter))
    bias = chosen = None
    if owners is not None:
        chosen = functional.one_hot(torch.tensor(owners), len(prompts)).to(dtype)
        before = torch.arange(max(prompts)) < torch.tensor(prompts)[list(owners), None]
        causal = places <= places[:, None]
        sees = torch.cat(
            [
                before[:, None].expand(count, width, -1),
                causal.expand(count, width, width),
            ],
            dim=2,
        )
        bias = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, -torch.inf)
        bias = bias[:, None].to(device)
        chosen = chosen.to(device)
    return Block(
        shape=(count, width),
        gather=gather.to(device),
        scatter=scatter.to(device),
        padding=(~is_token).flatten().nonzero().squeeze(1).to(device),
        owners=chosen,
        bias=bias,
    )
