"""What an update measures of each token of some completions.

The objective sees a token through log π of it, so an update moves the weights along

    -∇L = Σ_t c_t/d_t · ∇ log π_t,

where d_t is what the aggregation divides the token's loss by. `coefficient` is c_t, in
units of an advantage: for GRPO with k3 it is A·r + β·(π_ref/π - 1) where nothing is
clipped, and β·(π_ref/π - 1) where the bounds took the surrogate's gradient; with r = 1
that is arXiv:2402.03300, equation 21. It is taken from the backward pass, so it holds
whatever surrogate, aggregation, correction and KL estimator are chosen. A token that
the loss leaves out has 0.

Not all of a gradient passes through the chosen token: an entropy bonus and a KL over
the whole vocabulary ("full") move the token's whole distribution, beside what c_t says.
A KL that is aggregated in its own way counts in c_t as it weighs beside the surrogate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import numpy as np
import torch

from cohort.mismatch import GapMeasure, measure_gaps
from trainer.algorithm.loss import BatchTotals, aggregate, compares_with_the_old_policy
from trainer.algorithm.token_stats import TokenStatistics, on_cpu
from trainer.config import LossConfig, RunConfig
from trainer.model.microbatches import Minibatch
from trainer.model.packing import MicroBatch
from trainer.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class TokenValues:
    """Values of a completion's tokens, each [num_tokens].

    None: the run has no such value. NaN: the token has none.
    """

    logprob: torch.Tensor  # nats, under the policy that the update began with
    old_logprob: torch.Tensor | None  # the batch began with; None: the ratio tells it
    sampling_logprob: torch.Tensor | None  # as the rollout engine reported it
    teacher_logprob: torch.Tensor | None
    entropy: torch.Tensor
    kl: torch.Tensor | None
    ratio: torch.Tensor | None  # None: the objective compares with no other policy
    clipped: torch.Tensor | None  # -1 low, 1 high, 2 dual, 0 not; None: has no bounds
    advantage: torch.Tensor
    coefficient: torch.Tensor


def rows_of(micro: MicroBatch, kept: Collection[int]) -> list[int]:
    """Give rows of a micro-batch whose places in the step's batch are among `kept`."""
    if micro.is_filler:
        return []
    return [row for row, member in enumerate(micro.members) if member in kept]


def token_values(
    micro: MicroBatch,
    rows: Sequence[int],
    *,
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    statistics: TokenStatistics,
    config: RunConfig,
    totals: BatchTotals,
) -> dict[int, TokenValues]:
    """Return values of some rows of a micro-batch, behind its backward pass.

    They stay on its device, which is not waited for.

    Args:
        micro: B sequences with at most T tokens.
        rows: of those wanted.
        logprobs: [B, T] as the objective was given them, with their gradient.
        entropy: [B, T].
        statistics: what the objective found of the tokens that it covers.
        config: of the run or phase.
        totals: that the objective was given.
    """
    loss = config.loss_of_run
    assert logprobs.grad is not None
    has_ratio = loss.old_logprobs == "sampling" or compares_with_the_old_policy(loss)
    has_bounds = loss.surrogate not in ("reinforce", "sapo", "vespo")
    is_of_sequence = loss.surrogate == "gspo" and loss.old_logprobs == "policy"
    is_sampled = config.rollout.source != "dataset"
    tokens = micro.completions

    def spread(values: torch.Tensor | None) -> torch.Tensor | None:
        """Put statistics [N] at their tokens [B, T], NaN where the loss covers none."""
        if values is None:
            return None
        by_token = torch.full_like(logprobs, math.nan, requires_grad=False)
        by_token.view(-1).index_copy_(0, micro.covered, values.to(by_token.dtype))
        return by_token

    advantages = micro.advantages.to(logprobs.dtype)
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(1)
    low, high, dual = statistics.low, statistics.high, statistics.dual
    values = {
        "logprob": logprobs.detach(),
        "old_logprob": micro.old_logprobs if is_of_sequence else None,
        "sampling_logprob": micro.sampling_logprobs if is_sampled else None,
        "teacher_logprob": micro.reference_logprobs if config.distils else None,
        "entropy": entropy.detach(),
        "kl": spread(statistics.kl),
        "ratio": spread(statistics.ratio) if has_ratio else None,
        "clipped": spread(high.int() - low.int() + 2 * dual.int())
        if has_bounds
        else None,
        # no one has an advantage by what the environment wrote
        "advantage": torch.where(micro.completion_mask > 0, advantages, math.nan),
        "coefficient": coefficients(logprobs.grad, micro.mask, loss, totals=totals),
    }
    return {
        micro.members[row]: TokenValues(
            **{
                name: None if value is None else value[row, tokens[row]].clone()
                for name, value in values.items()
            }  # type: ignore[arg-type]  # None only where a field allows it
        )
        for row in rows
    }


def coefficients(
    gradient: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    *,
    totals: BatchTotals,
) -> torch.Tensor:
    """-∂L/∂log π of each token, [B, T], times the divisor that it was aggregated with.

    The divisor is asked of the aggregation too, as 1/(∂L/∂loss of the token).
    """
    mask = mask.to(gradient.dtype)
    losses = torch.zeros_like(gradient, requires_grad=True)
    (shares,) = torch.autograd.grad(
        aggregate(losses, mask, config, totals=totals), losses
    )
    return torch.where(shares > 0, -gradient / shares, 0.0)


def tokens_of_all(
    own: Mapping[int, TokenValues], world: World
) -> dict[int, TokenValues]:
    """Return what all processes found, by place in the step's batch, on the CPU."""
    tokens: dict[int, TokenValues] = {}
    for part in world.gather({place: on_cpu(own[place]) for place in own}):
        tokens |= part
    return tokens


def gaps_of_all(minibatches: Iterable[Minibatch], world: World) -> GapMeasure:
    """Return the gap between sampler and trainer of a step's batch, in its order,
    behind the first update by each minibatch.
    """
    members = list[int]()
    parts = [measure_gaps(*np.zeros((3, 0, 0)))]
    for micro in chain.from_iterable(part.micro_batches for part in minibatches):
        own = micro.first_logprobs
        own = micro.old_logprobs if own is None else own
        if own is None or micro.is_filler:
            continue
        mask = micro.mask * micro.completion_mask
        rows = micro.advantages.reshape(len(mask), -1).expand_as(mask)
        # one copy, as each waits for the GPU
        arrays = torch.stack([own, micro.sampling_logprobs, mask, rows]).cpu().numpy()
        parts.append(measure_gaps(*arrays))
        members += micro.members
    shares = world.gather((members, GapMeasure.joined(parts)))
    joined = GapMeasure.joined([part for _, part in shares])
    order = np.argsort([member for places, _ in shares for member in places])
    return replace(joined, sums=joined.sums[order])


NAMES = tuple(field.name for field in fields(TokenValues))
