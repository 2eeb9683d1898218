"""The KL of a run whose loss has none: to its start, and on a sample of its tokens.

It costs at most about 2 % of a step's time. Nothing that is trained depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from trainer.config import ReferenceConfig, RunConfig
from trainer.errors import is_out_of_memory
from trainer.model.microbatches import Minibatch
from trainer.model.packing import Batch, MicroBatch
from trainer.model.policy import Policy
from trainer.model.reference import (
    BaseReference,
    FrozenReference,
    base_of,
    load_start,
)
from trainer.seeding import derive, permutation
from trainer.tokenizers import first_line

# An update takes as long as three passes, or two with adapters, and sampling as long as
# one at least. So a pass over one token in 50 is 0.5 % of a step, and at most 1 %; as
# much again goes into what each pass takes, however small, if it is of 100 tokens.
_ONE_IN = 50
_FEWEST = 100  # tokens
# 1 GB of weights takes 0.2 s at most to a GPU, a step of their model a second or more.
_PARKED_EVERY = 16  # steps


def make_kl_sample(config: RunConfig, policy: Policy) -> KLSample | None:
    """What measures a KL that nothing depends on; None: there is none to measure."""
    if not config.samples_kl:
        return None
    if config.model.lora_rank > 0:
        return KLSample(base_of(policy, config), seed=config.seed)
    start = load_start(config)
    if policy.device.type == "cpu":
        return KLSample(FrozenReference(start, ReferenceConfig()), seed=config.seed)
    parked = ParkedReference(start, home=torch.device("cpu"))
    return KLSample(parked, seed=config.seed, every=_PARKED_EVERY)


class ParkedReference(FrozenReference):
    """A frozen model that lies in main memory and is on its device for a pass only.

    That is before an update, so it takes less there than the gradients that follow.
    """

    def __init__(self, model: Policy, *, home: torch.device) -> None:
        super().__init__(model, ReferenceConfig())
        self._device = model.device
        model.model.to(device=home)  # type: ignore[call-arg]  # torch overloads it

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        with self._on_device():
            super().add_logprobs(micro_batches, temperature=temperature)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        model = self.policy.model
        tensors = [*model.parameters(), *model.buffers()]
        parked = [tensor.data for tensor in tensors]
        try:
            for tensor in tensors:
                tensor.data = tensor.data.to(self._device)
            yield
        finally:
            for tensor, data in zip(tensors, parked, strict=True):
                tensor.data = data


class KLSample:
    """Completions of a step's batch whose KL to a reference is measured.

    Over the steps, the reference passes 1 in 50 of the tokens that an update does. A
    sample is of a completion and of 100 tokens at least: where a step's share is less,
    it is of every 2nd step, or 4th, or 8th, always with the first.
    """

    def __init__(
        self, reference: BaseReference | FrozenReference, *, seed: int, every: int = 1
    ) -> None:
        """`every`: steps from one sample to the next, at least; a power of 2."""
        self.reference = reference
        self._seed = seed
        self._every = every

    def places(self, batch: Batch, *, step: int) -> list[int]:
        """Places of the completions chosen of a step's batch.

        They are chosen without a look at their lengths, or short ones would come more
        often than they are sampled.
        """
        covered = batch.covered_places
        samples = [batch.samples[place] for place in covered]
        if not samples:
            return []
        prompts = {sample.prompt_ids for sample in samples}
        own = sum(len(sample.completion_ids) for sample in samples)
        tokens = sum(map(len, prompts)) + own  # an update passes each prompt once
        mean = sum(sample.num_tokens for sample in samples) / len(samples)
        every = self._every
        while every * tokens < _ONE_IN * max(_FEWEST, mean):
            every *= 2
        if (step - 1) % every:
            return []
        count = int(every * tokens / (_ONE_IN * mean))
        order = permutation(derive(self._seed, "kl", step), len(samples))
        return sorted(covered[place] for place in order[:count])

    def add_logprobs(
        self,
        minibatches: Sequence[Minibatch],
        *,
        step: int,
        temperature: float,
        max_tokens: int,
    ) -> str:
        """Fill in the sample's reference log-probs, NaN elsewhere, if any is due.

        Returns:
            Why memory does not suffice for it; "" where it does.
        """
        samples = [s for minibatch in minibatches for s in minibatch.batch.samples]
        whole = replace(minibatches[0].batch, samples=(*samples,))
        chosen = self.places(whole, step=step)
        if not chosen:
            return ""
        micros = [m for minibatch in minibatches for m in minibatch.micro_batches]
        here = {place for micro in micros for place in micro.members}
        own = [place for place in chosen if place in here]  # of this process
        batch = replace(whole, samples=tuple(samples[place] for place in own))
        found: list[torch.Tensor] = []
        while own and not found:
            try:
                found = self._logprobs(
                    batch,
                    device=micros[0].mask.device,
                    temperature=temperature,
                    max_tokens=max_tokens,
                )
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
                if max_tokens <= min(sample.num_tokens for sample in batch.samples):
                    return reason
                max_tokens //= 2
        rows = dict(zip(own, found, strict=True))
        for micro in micros:
            logprobs = torch.full_like(micro.mask, math.nan)
            for row, place in enumerate(micro.members):
                if place in rows:
                    values = rows[place][: logprobs.shape[1]]
                    logprobs[row, : len(values)] = values
            micro.reference_logprobs = logprobs
        return ""

    def _logprobs(
        self,
        batch: Batch,
        *,
        device: torch.device,
        temperature: float,
        max_tokens: int,
    ) -> list[torch.Tensor]:
        """The reference's log-probs of each sample, padded."""
        is_packed = self.reference.policy.is_packed
        micros = [
            batch.pack(rows, device=device)
            for rows in batch.cut(max_tokens=max_tokens, is_packed=is_packed)
        ]
        self.reference.add_logprobs(micros, temperature=temperature)
        found = {
            place: values
            for micro in micros
            if micro.reference_logprobs is not None
            for place, values in zip(
                micro.members, micro.reference_logprobs, strict=True
            )
        }
        return [found[place] for place in range(len(batch.samples))]
