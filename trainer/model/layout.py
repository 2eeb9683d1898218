"""Where the tokens of a micro-batch lie when none is padding and prompts are shared.

All tokens lie in one row: first each distinct prompt, once, then the completions, the
longest first. What a layer does to each token alone it does to this row; a completion's
tokens attend to its prompt too (`model.attention`). A completion's last token predicts
nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch

from trainer.model.attention import Attention, Copies, Moved, make_attention, sent


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch's tokens in one row of N."""

    input_ids: torch.Tensor  # [N]
    positions: torch.Tensor  # [N]
    asked: torch.Tensor  # [K], tokens of the row that something is predicted from
    answers: torch.Tensor  # [N], where among these a token is, if it is
    unasked: torch.Tensor  # [N - K], the others: most of the prompts'
    places: torch.Tensor  # [M], where among the asked each scored token is predicted
    scored: Copies  # these among the asked, for a pass on a GPU
    attention: Attention

    def only_asked(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of hidden states [N, H] those that something is predicted from, [K, H]."""
        found: torch.Tensor = Moved.apply(  # type: ignore[no-untyped-call]  # torch's
            hidden, self.asked, self.answers, self.unasked
        )
        return found


def make_layout(
    sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    firsts: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    is_varlen: bool = False,
) -> Layout:
    """The layout of some prompts with their completions.

    Args:
        sequences: token ids of a prompt and of its completion, both at least one.
        firsts: for each, the offset in prompt and completion of the first token that is
            scored; all behind it are.
        device: where the model is.
        dtype: of its activations.
        is_varlen: whether one kernel takes all sequences (`VarlenAttention`).
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
    offsets = [0] * len(prompts) + [lengths[owner] for owner in owners]
    # completions of one prompt are all begun from its last token
    asked, places = _joined(scored).unique(return_inverse=True)
    answers = torch.zeros(starts[-1], dtype=torch.long)
    answers[asked] = torch.arange(len(asked))
    is_asked = torch.zeros(starts[-1], dtype=torch.bool)
    is_asked[asked] = True
    return Layout(
        input_ids=sent(token_tensor(rows), device),
        positions=sent(
            _joined(
                range(offset, offset + len(ids))
                for ids, offset in zip(rows, offsets, strict=True)
            ),
            device,
        ),
        asked=sent(asked, device),
        answers=sent(answers, device),
        unasked=sent((~is_asked).nonzero().squeeze(1), device),
        places=sent(places, device),
        scored=Copies.make(places.numpy(), device=device),
        attention=make_attention(
            lengths,
            [len(ids) for ids in written],
            owners,
            device=device,
            dtype=dtype,
            is_varlen=is_varlen,
        ),
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
