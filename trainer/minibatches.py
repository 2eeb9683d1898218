"""A batch cut for its updates, and cut finer where the memory does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from trainer.batch import Batch, MicroBatch, set_advantages
from trainer.failures import is_out_of_memory
from trainer.tokenizers import first_line

Result = TypeVar("Result")
Advantages = torch.Tensor | Sequence[torch.Tensor]


class Minibatch:
    """The completions that one update is made of, cut into micro-batches."""

    def __init__(self, batch: Batch, *, max_tokens: int, device: torch.device) -> None:
        self.batch = batch
        self.max_tokens = max_tokens
        self.micro_batches: list[MicroBatch] = []
        self._device = device
        self._advantages: Advantages | None = None
        self.cut(max_tokens)

    def cut(self, max_tokens: int) -> None:
        """Cut anew; log-probs that all of the old parts have are kept."""
        before, self.max_tokens = self.micro_batches, max_tokens
        self.micro_batches = self.batch.micro_batches(
            max_tokens=max_tokens, device=self._device
        )
        _carry_over("old_logprobs", before, self.micro_batches)
        _carry_over("reference_logprobs", before, self.micro_batches)
        if self._advantages is not None:
            set_advantages(self.micro_batches, self._advantages)

    def set_advantages(self, advantages: Advantages) -> None:
        """Hand out the advantages of the step's batch, as `trainer.batch` does."""
        self._advantages = advantages
        set_advantages(self.micro_batches, advantages)

    @property
    def is_single_file(self) -> bool:
        """Whether each completion is alone already, so that nothing can be cut."""
        return all(len(micro.members) == 1 for micro in self.micro_batches)


def _carry_over(
    name: str, before: Sequence[MicroBatch], after: Sequence[MicroBatch]
) -> None:
    rows: dict[int, torch.Tensor] = {}
    for micro in before:
        values: torch.Tensor | None = getattr(micro, name)
        if values is None:
            return
        rows.update(zip(micro.members, values, strict=True))
    if not rows:
        return
    for micro in after:
        carried = torch.zeros_like(micro.mask)
        for place, member in enumerate(micro.members):
            row = rows[member][: carried.shape[1]]
            carried[place, : len(row)] = row
        setattr(micro, name, carried)


def completion_sums(
    micro_batches: Sequence[MicroBatch], values: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Each completion's sum of token values, float64 on the CPU, in batch order.

    `values` are [B, T] for each micro-batch; the prompt's tokens are left out.
    """
    sums = {
        member: total
        for micro, tokens in zip(micro_batches, values, strict=True)
        for member, total in zip(
            micro.members,
            torch.where(micro.completion_mask > 0, tokens, 0.0)
            .sum(dim=1)
            .double()
            .tolist(),
            strict=True,
        )
    }
    return torch.tensor([sums[member] for member in sorted(sums)], dtype=torch.float64)


class MemoryBudget:
    """How many tokens go through the model at once: fewer, once memory ran out.

    The cut changes memory and speed, not the result, so a step that ran out of memory
    is done again with half as many; `on_halved` is told the number and the reason.
    """

    def __init__(self, tokens: int, *, on_halved: Callable[[int, str], None]) -> None:
        self.tokens = tokens
        self._limit: int | None = None  # what memory was seen to bear
        self._on_halved = on_halved

    def begin_phase(self, tokens: int) -> None:
        """Take the number that a phase asks for, as far as memory bears it."""
        self.tokens = tokens if self._limit is None else min(tokens, self._limit)

    def run(
        self, minibatch: Minibatch, work: Callable[[Sequence[MicroBatch]], Result]
    ) -> Result:
        """Do work on micro-batches that fit; work must bear being begun again."""
        if minibatch.max_tokens > self.tokens:
            minibatch.cut(self.tokens)
        while True:
            try:
                return work(minibatch.micro_batches)
            except RuntimeError as error:
                if not is_out_of_memory(error) or minibatch.is_single_file:
                    raise
                reason = first_line(error)
            # Out of the handler the failed pass's tensors are gone with its frames.
            torch.cuda.empty_cache()
            self._halve(minibatch)
            self._on_halved(self.tokens, reason)

    def _halve(self, minibatch: Minibatch) -> None:
        """Until it makes a difference to this batch, which may be a small one."""
        num_before = len(minibatch.micro_batches)
        while len(minibatch.micro_batches) == num_before:
            self.tokens //= 2
            minibatch.cut(self.tokens)
        self._limit = self.tokens

    def state(self) -> dict[str, int | None]:
        return {"limit": self._limit}

    def load_state(self, state: Mapping[str, int | None]) -> None:
        """What memory was seen to bear; `begin_phase` heeds it."""
        self._limit = state["limit"]
