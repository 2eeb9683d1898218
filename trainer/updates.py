"""Updates of the policy: gradients over micro-batches, then one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.batch import MicroBatch
from trainer.config import RunConfig
from trainer.losses import BatchTotals, objective
from trainer.optimization import Optimizer
from trainer.policy import Policy
from trainer.tokens import TokenStatistics


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What one update did. `grad_norm` is the norm before clipping."""

    loss: float
    grad_norm: float
    is_skipped: bool  # loss or gradient was not finite, the weights are as before
    statistics: TokenStatistics


def update(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: BatchTotals,
    config: RunConfig,
    learning_rate: float,
) -> UpdateResult:
    """One gradient step over a batch, added up over its micro-batches.

    In the first update of a batch the policy still is the one the ratio compares with,
    so its log-probs serve as the old ones: no separate pass is needed for them.
    """
    losses, parts = [], []
    for micro in micro_batches:
        logprobs, entropy = policy.logprobs(
            micro, temperature=config.rollout.temperature
        )
        if micro.old_logprobs is None:
            micro.old_logprobs = logprobs.detach()
        loss, statistics = objective(
            logprobs,
            micro.old_logprobs,
            micro.advantages,
            micro.mask,
            config.loss_of_run,
            micro.reference_logprobs,
            sampling_logprobs=micro.sampling_logprobs,
            entropy=entropy,
            totals=totals,
        )
        loss.backward()
        optimizer.collect()
        losses.append(loss.detach())
        parts.append(statistics)
    total = torch.stack(losses).double().sum().item()
    norm = None
    if math.isfinite(total):
        norm = optimizer.step(learning_rate=learning_rate)
    optimizer.clear()
    return UpdateResult(
        loss=total,
        grad_norm=math.nan if norm is None else norm,
        is_skipped=norm is None,
        statistics=TokenStatistics.joined(parts),
    )
