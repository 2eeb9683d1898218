"""The objective of one update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.config import LossConfig
from trainer.kl import kl_estimate
from trainer.tokens import TokenStatistics


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """What a whole batch holds, so that each of its parts is divided alike."""

    num_tokens: int
    num_sequences: int


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    reference_logprobs: torch.Tensor | None = None,
    *,
    sampling_logprobs: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss to minimise over a batch, and what to log of it.

    Args:
        logprobs: [B, T], nats, under the policy being trained.
        old_logprobs: [B, T], under the policy before the first update of this batch.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on completion tokens.
        reference_logprobs: [B, T]; needed when config.kl_coef > 0 in the loss.
        sampling_logprobs: [B, T], as the rollout engine reported them; needed when
            config.importance_correction is set.
        entropy: [B, T], of the policy's distribution at each token; needed when
            config.entropy_coef > 0.
    """
    totals = BatchTotals(num_tokens=int(mask.sum().item()), num_sequences=mask.shape[0])
    loss, statistics = objective(
        logprobs,
        old_logprobs,
        advantages,
        mask,
        config,
        reference_logprobs,
        sampling_logprobs=sampling_logprobs,
        entropy=entropy,
        totals=totals,
    )
    return loss, {"loss": loss.item(), **statistics.metrics()}


def objective(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    reference_logprobs: torch.Tensor | None = None,
    *,
    sampling_logprobs: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    totals: BatchTotals,
) -> tuple[torch.Tensor, TokenStatistics]:
    """The share of a batch's loss that the given sequences contribute.

    Summed over the parts of any split of the batch it is the batch's loss, since
    `totals` (of the whole batch) sets the divisor.
    """
    _check_shapes(logprobs, old_logprobs, advantages, mask)
    mask = mask.to(logprobs.dtype)
    # Padding may hold anything, -inf too; 0 there keeps 0 · inf = NaN out of the sum.
    inside = mask > 0
    logprobs = torch.where(inside, logprobs, 0.0)
    old_logprobs = torch.where(inside, old_logprobs, 0.0)
    advantages = advantages.to(logprobs.dtype)
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(1)
    advantages = advantages.expand_as(logprobs)

    ratio = importance_ratio(logprobs, old_logprobs, mask, config)
    losses = surrogate_losses(logprobs, ratio, advantages, config)
    weight = _correction(old_logprobs, sampling_logprobs, mask, config)
    if weight is not None:
        losses = losses * weight
    kl = None
    if reference_logprobs is not None:
        reference_logprobs = torch.where(inside, reference_logprobs, 0.0)
        kl = kl_estimate(
            logprobs, reference_logprobs, config.kl_estimator, config.kl_clamp
        )
    losses = losses + _penalties(kl, entropy, inside, config)
    low, high = _clipped(ratio, advantages, config)
    statistics = TokenStatistics.of(
        inside, ratio=ratio, low=low, high=high, kl=kl, entropy=entropy, weight=weight
    )
    return aggregate(losses, mask, config, totals=totals), statistics


def importance_ratio(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor:
    """π/π_old of each token; for "gspo" of the sequence, exp(mean log-ratio).

    GSPO: arXiv:2507.18071, equation 7. Shape [B, T].
    """
    log_ratio = logprobs - old_logprobs
    if config.surrogate == "gspo":
        length = mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = ((log_ratio * mask).sum(dim=1, keepdim=True) / length).expand_as(
            logprobs
        )
    # exp() overflows float32 at 88; a ratio of e^20 is clipped or hopeless anyway
    return log_ratio.clamp(-20.0, 20.0).exp()


def surrogate_losses(
    logprobs: torch.Tensor,
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor:
    """Each token's policy loss, [B, T]; r = ratio, A = advantage.

    - clip, gspo: -min(r·A, clip(r, 1-low, 1+high)·A); with dual_clip = c, where A < 0
      the loss is at most -c·A (arXiv:1912.09729).
    - reinforce: -A·log π.
    - cispo: -stop_gradient(clip(r, 1-low, 1+high))·A·log π (arXiv:2506.13585).
    """
    if config.surrogate == "reinforce":
        return -advantages * logprobs
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.surrogate == "cispo":
        return -bounded.detach() * advantages * logprobs
    losses = -torch.minimum(ratio * advantages, bounded * advantages)
    if config.dual_clip is None:
        return losses
    capped = torch.minimum(losses, -config.dual_clip * advantages)
    return torch.where(advantages < 0, capped, losses)


def _clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the lower and the upper bound take the gradient away; bool [B, T]."""
    low, high = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    match config.surrogate:
        case "reinforce":
            return torch.zeros_like(low), torch.zeros_like(high)
        case "cispo":
            return low, high
        case _:
            return low & (advantages < 0), high & (advantages > 0)


def _correction(
    old_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor | None,
    mask: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor | None:
    """Weight for tokens sampled by an engine that disagrees with the trainer.

    w = π_old/π_sampled of the token, or of the whole sequence (the product). Truncate:
    min(w, cap). Mask: w where w ≤ cap, else 0. Carries no gradient.
    """
    if config.importance_correction is None:
        return None
    if sampling_logprobs is None:
        raise ValueError(
            f'importance_correction = "{config.importance_correction}" needs the '
            "log-probs of sampling; got none."
        )
    level, action = config.importance_correction.split("_")
    log_weight = (old_logprobs - sampling_logprobs).detach() * mask
    if level == "sequence":
        log_weight = log_weight.sum(dim=1, keepdim=True).expand_as(mask)
    weight = log_weight.clamp(-20.0, 20.0).exp()
    if action == "truncate":
        return weight.clamp(max=config.importance_cap)
    return torch.where(weight <= config.importance_cap, weight, 0.0)


def _penalties(
    kl: torch.Tensor | None,
    entropy: torch.Tensor | None,
    inside: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor | float:
    penalty: torch.Tensor | float = 0.0
    if config.kl_coef > 0 and config.kl_in == "loss":
        if kl is None:
            raise ValueError(
                f"A KL weight of {config.kl_coef:g} needs the reference's log-probs; "
                "got none."
            )
        penalty = penalty + config.kl_coef * kl
    if config.entropy_coef > 0:
        if entropy is None:
            raise ValueError(
                f"An entropy weight of {config.entropy_coef:g} needs the entropy of "
                "each token; got none."
            )
        penalty = penalty - config.entropy_coef * torch.where(inside, entropy, 0.0)
    return penalty


def aggregate(
    losses: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    *,
    totals: BatchTotals,
) -> torch.Tensor:
    """One number from token losses [B, T].

    - token_mean: Σ / tokens of the batch.
    - sequence_mean_token_mean: mean over sequences of their token means.
    - sequence_mean_token_sum: mean over sequences of their token sums.
    - constant: Σ / (sequences · constant_length) (arXiv:2503.20783).
    """
    # `where`, not a product: 0 · inf would be NaN
    losses = torch.where(mask > 0, losses, 0.0)
    match config.aggregation:
        case "token_mean":
            return losses.sum() / max(totals.num_tokens, 1)
        case "sequence_mean_token_mean":
            means = losses.sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            return means.sum() / max(totals.num_sequences, 1)
        case "sequence_mean_token_sum":
            return losses.sum() / max(totals.num_sequences, 1)
        case "constant":
            if config.constant_length is None:
                raise ValueError(
                    'aggregation = "constant" needs constant_length, such as the '
                    "largest number of new tokens."
                )
            return losses.sum() / (
                max(totals.num_sequences, 1) * config.constant_length
            )


def _check_shapes(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> None:
    allowed = (logprobs.shape, logprobs.shape[:1], (*logprobs.shape[:1], 1))
    if (
        logprobs.ndim != 2
        or old_logprobs.shape != logprobs.shape
        or mask.shape != logprobs.shape
        or tuple(advantages.shape) not in {tuple(shape) for shape in allowed}
    ):
        raise ValueError(
            "Log-probs, old log-probs and mask must be [B, T] and advantages [B] or "
            f"[B, T]; got {list(logprobs.shape)}, {list(old_logprobs.shape)}, "
            f"{list(mask.shape)} and {list(advantages.shape)}."
        )
