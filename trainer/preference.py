"""DPO on pairs built from groups: credit that changes with every update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trainer.algorithm.advantages import Floats, preference_advantages
from trainer.model.microbatches import (
    MemoryBudget,
    Minibatch,
    completion_sums,
    in_batch_order,
)
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.parallel.world import ALONE, World


def credit_preferences(
    minibatch: Minibatch,
    rewards: Floats,
    *,
    policy: Policy,
    temperature: float,
    beta: float,
    budget: MemoryBudget,
    world: World = ALONE,
) -> tuple[Floats, float]:
    """Set the advantages of a minibatch's pairs under the policy as it is now.

    A pair's weight depends on how far the policy has told winner and loser apart, so
    each update weighs anew, after a pass of its own without gradient.

    Args:
        minibatch: groups with the reference's log-probs filled in.
        rewards: of the whole step's batch, float64 [P, G].

    Returns:
        The advantages of the whole batch [P, G], 0 outside of this minibatch, and
        DPO's loss, the mean over its pairs (arXiv:2305.18290, equation 7).
    """

    def sums(
        micro_batches: Sequence[MicroBatch],
    ) -> tuple[dict[int, float], dict[int, float]]:
        with torch.no_grad():
            logprobs = [
                policy.logprobs(micro, temperature=temperature)[0]
                for micro in micro_batches
            ]
        reference = [micro.reference_logprobs for micro in micro_batches]
        return (
            completion_sums(micro_batches, logprobs),
            completion_sums(micro_batches, [r for r in reference if r is not None]),
        )

    policy_sums, reference_sums = (
        in_batch_order(world, own) for own in budget.run(minibatch, sums)
    )
    first = minibatch.batch.first
    here = slice(first, first + len(minibatch.batch.samples))
    shape = (-1, rewards.shape[1])
    weighed, loss = preference_advantages(
        policy_sums.reshape(shape),
        reference_sums.reshape(shape),
        rewards.ravel()[here].reshape(shape),
        beta,
    )
    advantages = np.zeros_like(rewards)
    advantages.ravel()[here] = weighed.ravel()
    minibatch.set_advantages(advantages)
    return advantages, loss
