"""Micro-batches: sequences of like length, padded together, within a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.groups import Group
from trainer.losses import BatchTotals


@dataclass(frozen=True, kw_only=True)
class TrainingSample:
    """One prompt with one completion.

    >>> TrainingSample(
    ...     prompt_ids=(5, 9), completion_ids=(7, 2), sampling_logprobs=(-0.1, -0.7)
    ... )
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampling_logprobs: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(kw_only=True)
class MicroBatch:
    """B sequences of at most L tokens, with at most T completion tokens each.

    Padding is on the right, where causal attention cannot see it, so no attention mask
    is needed. `places` are where in the flattened [B·L] the model predicts a completion
    token; `slots` where in the flattened [B·T] that token belongs.
    """

    members: list[int]  # places in the batch
    input_ids: torch.Tensor  # [B, L]
    places: torch.Tensor  # [N]
    slots: torch.Tensor  # [N]
    targets: torch.Tensor  # [N]
    mask: torch.Tensor  # [B, T]
    advantages: torch.Tensor  # [B], 0 until they are set
    sampling_logprobs: torch.Tensor  # [B, T]
    old_logprobs: torch.Tensor | None = None  # [B, T], once the first update ran
    reference_logprobs: torch.Tensor | None = None  # [B, T]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of the N completion tokens as [B, T], 0 on padding."""
        flat = values.new_zeros(self.mask.numel())
        return flat.index_copy(0, self.slots, values).view_as(self.mask)


@dataclass(frozen=True)
class Batch:
    """The completions of one step."""

    samples: tuple[TrainingSample, ...]

    @property
    def totals(self) -> BatchTotals:
        return BatchTotals(
            num_tokens=sum(len(sample.completion_ids) for sample in self.samples),
            num_sequences=len(self.samples),
        )

    def micro_batches(
        self, *, max_tokens: int, device: torch.device
    ) -> list[MicroBatch]:
        """Cut by length; a sequence longer than `max_tokens` goes alone."""
        return [
            _pack(self.samples, members, device)
            for members in split_by_length(
                [sample.num_tokens for sample in self.samples], max_tokens=max_tokens
            )
        ]


def batch_of(groups: Sequence[Group]) -> Batch:
    """The completions of some groups, group after group."""
    return Batch(
        tuple(
            TrainingSample(
                prompt_ids=group.prompt.token_ids,
                completion_ids=completion.token_ids,
                sampling_logprobs=completion.logprobs,
            )
            for group in groups
            for completion in group.completions
        )
    )


def set_advantages(
    micro_batches: Sequence[MicroBatch], advantages: torch.Tensor
) -> None:
    """Hand out the advantages [P, G] of the groups that the batch was made of."""
    flat = advantages.flatten().float()
    for micro in micro_batches:
        micro.advantages = flat[micro.members].to(micro.mask.device)


def split_by_length(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Places of sequences, longest first, cut so that rows × longest ≤ max_tokens.

    The longest come first, so a step that does not fit in memory fails at once.

    >>> split_by_length([2, 9, 3, 8], max_tokens=18)
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    parts: list[list[int]] = []
    for place in order:
        longest = lengths[parts[-1][0]] if parts else 0
        if parts and (len(parts[-1]) + 1) * longest <= max_tokens:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def _pack(
    samples: Sequence[TrainingSample], members: list[int], device: torch.device
) -> MicroBatch:
    chosen = [samples[member] for member in members]
    length = max(sample.num_tokens for sample in chosen)
    width = max(len(sample.completion_ids) for sample in chosen)
    tokens: list[list[int]] = []
    sampling: list[list[float]] = []
    places: list[int] = []
    slots: list[int] = []
    for row, sample in enumerate(chosen):
        ids = [*sample.prompt_ids, *sample.completion_ids]
        tokens.append(ids + [0] * (length - len(ids)))
        size = len(sample.completion_ids)
        sampling.append([*sample.sampling_logprobs, *[0.0] * (width - size)])
        # the token at position t is predicted from the hidden state at t - 1
        first = row * length + len(sample.prompt_ids) - 1
        places.extend(range(first, first + size))
        slots.extend(range(row * width, row * width + size))
    slot_ids = torch.tensor(slots, dtype=torch.long)
    mask = torch.zeros(len(chosen) * width)
    mask[slot_ids] = 1.0
    targets = [token for sample in chosen for token in sample.completion_ids]
    return MicroBatch(
        members=members,
        input_ids=torch.tensor(tokens, device=device),
        places=torch.tensor(places, dtype=torch.long, device=device),
        slots=slot_ids.to(device),
        targets=torch.tensor(targets, dtype=torch.long, device=device),
        mask=mask.view(len(chosen), width).to(device),
        advantages=torch.zeros(len(chosen), device=device),
        sampling_logprobs=torch.tensor(sampling, dtype=torch.float32, device=device),
    )
