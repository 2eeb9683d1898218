"""Updates of the policy: gradients over micro-batches, then one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, cast

import torch

from trainer.algorithm.loss import BatchTotals, objective
from trainer.algorithm.token_stats import TokenStatistics
from trainer.config import RunConfig
from trainer.heartbeat import beat
from trainer.model.optimizer import Optimizer
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy, TokenPredictor
from trainer.model.reference import Reference
from trainer.model.token_values import TokenValues, rows_of, token_values, tokens_of_all
from trainer.outcome import Pass, UpdateResult
from trainer.parallel.world import ALONE, World


def update(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: BatchTotals,
    config: RunConfig,
    learning_rate: float,
) -> UpdateResult:
    """One gradient step over a minibatch, its gradient and what is done with it."""
    found = add_gradients(
        policy, optimizer, micro_batches, totals=totals, config=config
    )
    return apply_gradients(
        optimizer,
        found,
        num_sequences=totals.num_sequences,
        learning_rate=learning_rate,
    )


def add_gradients(
    policy: Policy,
    optimizer: Optimizer,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: BatchTotals,
    config: RunConfig,
    kl_coef: float | None = None,
    reference: Reference | None = None,
    kept: Collection[int] = (),
) -> Pass:
    """The gradient of a minibatch, added up over its micro-batches.

    Where no old log-probs are set, the policy still is the one the ratio compares with,
    so those of this pass serve. Whatever ends the pass early leaves no gradient behind:
    it may be begun again.

    Args:
        policy: the model.
        optimizer: of its weights.
        micro_batches: with advantages and, for a KL, the reference's log-probs.
        totals: of the minibatch.
        config: of the run or phase.
        kl_coef: in place of the configured one where it adapts.
        reference: asked once more for a KL over the whole vocabulary.
        kept: places in the step's batch of completions whose token values are asked
            for, of all processes. They change nothing else.
    """
    losses, parts, tokens = [], [], dict[int, TokenValues]()
    optimizer.clear()
    try:
        for micro in micro_batches:
            beat()
            rows = rows_of(micro, kept)
            forward = _objective(
                policy,
                micro,
                totals=totals,
                config=config,
                kl_coef=kl_coef,
                reference=reference,
            )
            if rows:
                forward.logprobs.retain_grad()
            forward.loss.backward()
            optimizer.collect()
            losses.append(forward.loss.detach())
            parts.append(forward.statistics)
            if rows:
                tokens |= token_values(
                    micro,
                    rows,
                    logprobs=forward.logprobs,
                    entropy=forward.entropy,
                    statistics=forward.statistics,
                    config=config,
                    totals=totals,
                )
        return Pass(
            loss=torch.stack(losses).double().sum().item(),
            statistics=TokenStatistics.joined(parts),
            tokens=tokens if kept else None,
        )
    except BaseException:
        optimizer.clear()
        raise


def apply_gradients(
    optimizer: Optimizer,
    found: Pass,
    *,
    num_sequences: int,
    learning_rate: float,
    world: World = ALONE,
) -> UpdateResult:
    """Step by the gradients of all processes, unless there is no number among them."""
    loss, norm = world.sum(found.loss), None
    if math.isfinite(loss):
        norm = optimizer.step(learning_rate=learning_rate)
    optimizer.clear()
    return UpdateResult(
        loss=loss,
        grad_norm=math.nan if norm is None else norm,
        is_skipped=norm is None,
        num_sequences=num_sequences,
        statistics=found.statistics.of_all(world),
        tokens={} if found.tokens is None else tokens_of_all(found.tokens, world),
    )


class _Forward(NamedTuple):
    loss: torch.Tensor
    statistics: TokenStatistics
    logprobs: torch.Tensor  # [B, T]
    entropy: torch.Tensor  # [B, T]


def _objective(
    policy: Policy,
    micro: MicroBatch,
    *,
    totals: BatchTotals,
    config: RunConfig,
    kl_coef: float | None,
    reference: Reference | None,
) -> _Forward:
    temperature, kl_full = config.logprob_temperature, None
    if config.loss.kl_estimator == "full" and reference is not None:
        # only a server has no hidden states, and is refused with this estimator
        predictor = cast(TokenPredictor, reference)
        logprobs, entropy, kl_full = policy.logprobs_and_kl(
            micro, predictor, temperature=temperature
        )
    else:
        logprobs, entropy = policy.logprobs(micro, temperature=temperature)
    if micro.old_logprobs is None:
        micro.old_logprobs = logprobs.detach()
    # At another temperature the engine's log-probs are of another distribution.
    is_comparable = temperature == config.rollout.temperature
    loss, statistics = objective(
        logprobs,
        micro.old_logprobs,
        micro.advantages,
        micro.mask,
        config.loss_of_run,
        micro.reference_logprobs,
        sampling_logprobs=micro.sampling_logprobs if is_comparable else None,
        entropy=entropy,
        kl_full=kl_full,
        kl_coef=kl_coef,
        totals=totals,
    )
    return _Forward(loss, statistics, logprobs, entropy)


def add_old_logprobs(
    policy: Policy, micro_batches: Sequence[MicroBatch], *, temperature: float
) -> None:
    """Fill in what the ratio compares with, before an update moves the policy."""
    with torch.no_grad():
        for micro in micro_batches:
            beat()
            micro.old_logprobs, _ = policy.logprobs(micro, temperature=temperature)
