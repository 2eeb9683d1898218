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
    num_sequences: int
    statistics: TokenStatistics


def update(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: BatchTotals,
    config: RunConfig,
    learning_rate: float,
    kl_coef: float | None = None,
) -> UpdateResult:
    """One gradient step over a minibatch, added up over its micro-batches.

    Where no old log-probs are set, the policy still is the one the ratio compares with,
    so those of this pass serve. Whatever ends the pass early leaves no gradient behind:
    it may be begun again. `kl_coef` overrides the configured one where it adapts.
    """
    losses, parts = [], []
    optimizer.clear()
    try:
        for micro in micro_batches:
            loss, statistics = _objective(
                policy, micro, totals=totals, config=config, kl_coef=kl_coef
            )
            loss.backward()
            optimizer.collect()
            losses.append(loss.detach())
            parts.append(statistics)
        total = torch.stack(losses).double().sum().item()
        norm = None
        if math.isfinite(total):
            norm = optimizer.step(learning_rate=learning_rate)
    finally:
        optimizer.clear()
    return UpdateResult(
        loss=total,
        grad_norm=math.nan if norm is None else norm,
        is_skipped=norm is None,
        num_sequences=totals.num_sequences,
        statistics=TokenStatistics.joined(parts),
    )


def _objective(
    policy: Policy,
    micro: MicroBatch,
    *,
    totals: BatchTotals,
    config: RunConfig,
    kl_coef: float | None,
) -> tuple[torch.Tensor, TokenStatistics]:
    logprobs, entropy = policy.logprobs(micro, temperature=config.rollout.temperature)
    if micro.old_logprobs is None:
        micro.old_logprobs = logprobs.detach()
    return objective(
        logprobs,
        micro.old_logprobs,
        micro.advantages,
        micro.mask,
        config.loss_of_run,
        micro.reference_logprobs,
        sampling_logprobs=micro.sampling_logprobs,
        entropy=entropy,
        kl_coef=kl_coef,
        totals=totals,
    )


def add_old_logprobs(
    policy: Policy, micro_batches: Sequence[MicroBatch], *, temperature: float
) -> None:
    """Fill in what the ratio compares with, before an update moves the policy."""
    with torch.no_grad():
        for micro in micro_batches:
            micro.old_logprobs, _ = policy.logprobs(micro, temperature=temperature)
