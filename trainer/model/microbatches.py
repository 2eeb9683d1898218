"""Splits a batch into micro-batches, and these among processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from trainer.algorithm.advantages import Floats
from trainer.algorithm.entropy import Bools
from trainer.model.attention import sent
from trainer.model.packing import Batch, MicroBatch, TrainingSample, set_advantages
from trainer.parallel.world import ALONE, World


@dataclass(kw_only=True)
class Shard:
    """A process's share."""

    places: list[int] = field(default_factory=list)
    filler: int | None = None  # another's, taken along to keep step


def shard_micro_batches(num_parts: int, *, num_shards: int) -> list[Shard]:
    """Distribute micro-batches evenly over shards.

    A pass through the model is collective: processes exchange weights and gradients
    layer by layer. So each round waits for the slowest process, and a process with
    fewer micro-batches would leave the others waiting forever. Parts come longest
    first, so a round has parts of similar length, and shards alternate direction. A
    shard with one part less repeats the last part, the shortest, as a filler.

    >>> [(shard.places, shard.filler) for shard in shard_micro_batches(5, num_shards=2)]
    [([0, 3, 4], None), ([1, 2], 4)]
    """
    shards = [Shard() for _ in range(num_shards)]
    for first in range(0, num_parts, num_shards):
        places = range(first, min(first + num_shards, num_parts))
        is_there_and_back = first // num_shards % 2 == 1
        for shard, place in zip(
            shards[::-1] if is_there_and_back else shards, places, strict=False
        ):
            shard.places.append(place)
    most = max(len(shard.places) for shard in shards)
    for shard in shards:
        if len(shard.places) < most:
            shard.filler = num_parts - 1
    return shards


Advantages = Floats | Sequence[Floats]
_CARRIED = ("old_logprobs", "first_logprobs", "reference_logprobs", "kept", "chosen")


class Minibatch:
    """The completions of one update, split into micro-batches.

    Every process has its own micro-batches, and the same number of them. If they do not
    divide evenly, some processes repeat one without any token in the loss.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        max_tokens: int,
        device: torch.device,
        is_packed: bool = False,
        world: World = ALONE,
    ) -> None:
        """`is_packed`: as `Policy.is_packed` tells."""
        self.batch = batch
        self.max_tokens = max_tokens
        self.micro_batches: list[MicroBatch] = []  # of this process
        self.num_parts = 0  # micro-batches of all processes
        self._device = device
        self._is_packed = is_packed
        self._world = world
        self._advantages: Advantages | None = None
        self.cut(max_tokens)

    def cut(self, max_tokens: int) -> None:
        """Cut again; log-probs that all of the old parts have are kept."""
        before, self.max_tokens = self.micro_batches, max_tokens
        parts = self.batch.cut(max_tokens=max_tokens, is_packed=self._is_packed)
        self.num_parts = len(parts)
        shard = shard_micro_batches(len(parts), num_shards=self._world.size)[
            self._world.rank
        ]
        micros = [
            self.batch.pack(parts[place], device=self._device) for place in shard.places
        ]
        if shard.filler is not None:
            micros.append(
                _unweighed(self.batch.pack(parts[shard.filler], device=self._device))
            )
        self.micro_batches = micros
        for name in _CARRIED:
            _carry_over(name, before, self.micro_batches, self._world)
        if self._advantages is not None:
            set_advantages(self.micro_batches, self._advantages)

    def idle_micro_batches(self) -> list[MicroBatch]:
        """Return as many micro-batches, with next to nothing in them."""
        token = self.batch.samples[0].prompt_ids[0]
        tiny = replace(
            self.batch,
            samples=(
                TrainingSample(
                    prompt_ids=(token,),
                    completion_ids=(token,),
                    sampling_logprobs=(0.0,),
                ),
            ),
        )
        micro = _unweighed(tiny.pack([0], device=self._device))
        micro.old_logprobs = micro.reference_logprobs = micro.mask
        return [micro] * len(self.micro_batches)

    def set_advantages(self, advantages: Advantages) -> None:
        """Hand out the advantages of the step's batch, as `model.packing` does."""
        self._advantages = advantages
        set_advantages(self.micro_batches, advantages)

    def choose(
        self,
        name: Literal["kept", "chosen"],
        choice: Callable[..., Bools],
        *read: str,
    ) -> None:
        """Mark the tokens of the loss that a choice among those of all processes picks.

        Args:
            name: the field of the micro-batches that has 1 where a token is picked.
            choice: takes [N] of each field that is read, in the batch's order.
            read: fields with [B, T], or with [B] of whole completions.
        """
        slots = {
            self.batch.first + place: np.flatnonzero(covered)
            for place, covered in enumerate(self.batch.covered)
        }
        own: dict[int, Floats] = {}
        for micro in self.micro_batches:
            spread = [
                getattr(micro, field)
                .reshape(len(micro.members), -1)
                .expand_as(micro.mask)
                for field in read
            ]
            rows = torch.stack(spread, dim=1).double().cpu().numpy()
            for member, row in zip(micro.members, rows, strict=True):
                own[member] = row[:, slots[member]]
        tokens = in_batch_order(self._world, own)
        # nothing to choose from where all completions are masked
        chosen = choice(*tokens) if tokens.size else np.zeros(0, dtype=bool)
        ends = np.cumsum([len(places) for places in slots.values()])
        parts = dict(zip(slots, np.split(chosen, ends[:-1]), strict=True))
        for micro in self.micro_batches:
            marks = torch.zeros(micro.mask.shape)  # on the host, as for advantages
            for row, member in enumerate(micro.members):
                marks[row, slots[member]] = torch.from_numpy(parts[member]).float()
            setattr(micro, name, sent(marks, self._device))

    @property
    def is_single_file(self) -> bool:
        """True where each completion is alone already, so that nothing can be cut."""
        return self.num_parts == len(self.batch.samples)


def _unweighed(micro: MicroBatch) -> MicroBatch:
    """Return the micro-batch with no token that the loss covers."""
    return replace(
        micro,
        mask=torch.zeros_like(micro.mask),
        covered=micro.covered[:0],
        is_filler=True,
    )


def _carry_over(
    name: str,
    before: Sequence[MicroBatch],
    after: Sequence[MicroBatch],
    world: World,
) -> None:
    if not before:
        return
    shares = world.gather(_rows(name, before, send=world.size > 1))
    rows: dict[int, torch.Tensor] = {}
    for share in shares:
        if share is None:
            return  # a pass that failed on the way
        rows |= share
    for micro in after:
        carried = torch.zeros_like(micro.mask)
        for place, member in enumerate(micro.members):
            row = rows[member][: carried.shape[1]]
            carried[place, : len(row)] = row
        setattr(micro, name, carried)


def _rows(
    name: str, micro_batches: Sequence[MicroBatch], *, send: bool
) -> dict[int, torch.Tensor] | None:
    """Return each completion's log-probs; None where some have none. On the CPU to
    send.
    """
    rows: dict[int, torch.Tensor] = {}
    for micro in micro_batches:
        values: torch.Tensor | None = getattr(micro, name)
        if values is None:
            return None
        rows.update(zip(micro.members, values.cpu() if send else values, strict=True))
    return rows


def completion_sums(
    micro_batches: Sequence[MicroBatch], values: Sequence[torch.Tensor]
) -> dict[int, float]:
    """Return each completion's sum of token values, by its place in the step's batch.

    `values` are [B, T] for each micro-batch; the prompt's tokens are left out.
    """
    sums = [
        torch.where(micro.completion_mask > 0, tokens, 0.0).sum(dim=1).double()
        for micro, tokens in zip(micro_batches, values, strict=True)
    ]
    members = [member for micro in micro_batches for member in micro.members]
    return dict(zip(members, torch.cat(sums).tolist(), strict=True))


def in_batch_order(world: World, own: Mapping[int, float | Floats]) -> Floats:
    """Return what all processes found of their completions, float64, in the batch's
    order: a number of each, or joined columns of its tokens.
    """
    by_place: dict[int, float | Floats] = {}
    for part in world.gather(dict(own)):
        by_place |= part
    return np.hstack([by_place[place] for place in sorted(by_place)]).astype(np.float64)
