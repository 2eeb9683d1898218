"""Made-up batches for tests."""

import random
from collections.abc import Sequence

import numpy as np

from trainer.algorithm.loss import BatchTotals
from trainer.config import RunConfig
from trainer.grpo import add_gradients, apply_gradients
from trainer.model.optimizer import Optimizer
from trainer.model.packing import Batch, MicroBatch, TrainingSample, set_advantages
from trainer.model.policy import Policy
from trainer.run.outcome import LossTerms, UpdateResult


def make_batch(num_samples: int, *, seed: int = 0) -> Batch:
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, 30) for _ in range(rng.randint(low, high)))

    samples = []
    for _ in range(num_samples):
        completion = ids(1, 9)
        samples.append(
            TrainingSample(
                prompt_ids=ids(1, 12),
                completion_ids=completion,
                sampling_logprobs=tuple(-rng.random() for _ in completion),
                end_tokens=(len(completion) - 1,),
            )
        )
    return Batch(tuple(samples))


def cut(batch: Batch, policy: Policy, *, max_tokens: int) -> list[MicroBatch]:
    """Micro-batches with advantages that depend on the sample alone."""
    micro_batches = batch.micro_batches(max_tokens=max_tokens, device=policy.device)
    count = len(batch.samples)
    set_advantages(micro_batches, np.linspace(-1, 1, count)[None])
    return micro_batches


def update(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: BatchTotals,
    config: RunConfig,
    learning_rate: float,
) -> UpdateResult:
    """One update by a minibatch, outside of a run."""
    terms = LossTerms(config, totals)
    found = add_gradients(policy, optimizer, micro_batches, terms)
    return apply_gradients(optimizer, found, totals, learning_rate=learning_rate)
