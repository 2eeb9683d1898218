"""DPO: updates by the pairs of a batch, in place of GRPO's advantages.

Each group's completions make pairs of a better and a worse one. A pair's weight depends
on the policy as it is now, so each update weighs again (arXiv:2305.18290).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from trainer.algorithm.advantages import Floats, preference_advantages
from trainer.model.budget import MemoryBudget
from trainer.model.microbatches import Minibatch, completion_sums, in_batch_order
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.parallel.world import ALONE, World
from trainer.run.outcome import UpdateResult
from trainer.run.state import Run, RunState
from trainer.types import Group, reward_matrix


def update_by_preferences(
    run: Run,
    state: RunState,
    groups: Sequence[Group],
    minibatches: Sequence[Minibatch],
    update: Callable[[Minibatch, int], UpdateResult],
) -> tuple[Floats, list[UpdateResult]]:
    """Return updates by DPO, whose loss is reported in place of its surrogate's.

    Args:
        groups: of the step's batch.
        minibatches: with the reference's log-probs filled in.
        update: makes one by a minibatch, in the pass over the batch that is counted
            from 0.

    Returns:
        The advantages [P, G] of the first pass, from which later ones differ a little,
        and what each update did.
    """
    config, rewards = state.phase.config, reward_matrix(groups)
    advantages, updates = np.zeros_like(rewards), []
    for number in range(config.optim.updates_per_batch):
        for minibatch in minibatches:
            weighed, loss = credit_preferences(
                minibatch,
                rewards,
                policy=run.policy,
                temperature=config.logprob_temperature,
                beta=config.advantage.preference_beta,
                budget=state.budget,
                world=run.world,
            )
            if number == 0:
                advantages = advantages + weighed
            updates.append(replace(update(minibatch, number), loss=loss))
    return advantages, updates


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
    each update weighs again, after a pass of its own without gradient.

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
