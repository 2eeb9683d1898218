"""The objective: ratio, surrogate, correction, KL and aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from trainer.algorithm.corrections import (
    importance_weights,
    leaves_region,
    sequence_weights,
    token_weights,
)
from trainer.algorithm.kl import kl_estimate
from trainer.algorithm.token_stats import TokenStatistics
from trainer.config import LossConfig

# In place of a reference's log-prob; NaN would hide a fault of its model.
NOT_ASKED = math.inf


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
        log_ratio = _sequence_mean(log_ratio, mask)
    # exp() overflows float32 at 88; a ratio of e^20 is clipped or hopeless anyway
    return log_ratio.clamp(-20.0, 20.0).exp()


def compares_with_the_old_policy(loss: LossConfig) -> bool:
    """Return whether the objective uses the policy's own log-probs before the batch."""
    uses_ratio = (
        loss.surrogate != "reinforce"
        or loss.importance_correction is not None
        or loss.geometric_mask is not None
        or (loss.kl_ratio and loss.kl_coef > 0)
    )
    return loss.old_logprobs == "policy" and uses_ratio


class Surrogate(NamedTuple):
    """The policy loss of each token [B, T], and where a bound takes its gradient."""

    losses: torch.Tensor
    low: torch.Tensor  # bool, as the other two: below the lower bound
    high: torch.Tensor
    dual: torch.Tensor  # the loss of a bad token is capped


def surrogate_of(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    *,
    correction: torch.Tensor | None = None,
) -> Surrogate:
    """Return each token's policy loss; r = ratio, A = advantage, ℓ = ln r.

    - clip, gspo: -min(r·A, clip(r, 1-low, 1+high)·A); with dual_clip = c, where A < 0
      the loss is at most -c·A (arXiv:1912.09729). Clip with KL-Cov: -A·r.
    - reinforce: -A·log π.
    - cispo: -stop_gradient(clip(r, 1-low, 1+high))·A·log π (arXiv:2506.13585).
    - dppo_tv, dppo_kl: -A·r, 0 where `leaves_region`, with r = π/μ against the sampler
      (arXiv:2602.04879); above importance_cap the gradient is that of -A·cap·log π, as
      a rare token's r may be thousands within the region.
    - sapo: -A·(4/τ)·σ(τ·(r - 1)), τ by the sign of A (arXiv:2511.20347).
    - gmpo: -A·s of each token, s = exp(mean ℓ̃) of its sequence, where ℓ̃ is ℓ bounded by
      [-low, high] where A draws it further out (arXiv:2507.20673).
    - vespo: -stop_gradient(φ)·A·log π, φ = exp(λ + k·ln W - λ·W), with W the product of
      a sequence's ratios and of its correction, k and λ by the sign of A
      (arXiv:2602.10693).
    """
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    low, high = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    never = torch.zeros_like(low)
    good, bad = advantages > 0, advantages < 0
    match config.surrogate:
        case "reinforce":
            return Surrogate(-advantages * logprobs, never, never, never)
        case "clip" if config.covariance == "kl":
            return Surrogate(-advantages * ratio, never, never, never)
        case "cispo":
            losses = -bounded.detach() * advantages * logprobs
            return Surrogate(losses, low, high, never)
        case "dppo_tv" | "dppo_kl":
            low, high = leaves_region(
                config,
                logprobs=logprobs.detach(),
                old_logprobs=old_logprobs,
                advantages=advantages,
            )
            # above the cap 1 + ln π - stop_gradient(ln π) is 1, with ln π's gradient
            slope = config.importance_cap * (1 + logprobs - logprobs.detach())
            held = torch.where(ratio > config.importance_cap, slope, ratio)
            losses = torch.where(low | high, 0.0, -advantages * held)
            return Surrogate(losses, low, high, never)
        case "sapo":
            positive, negative = config.sapo_tau_positive, config.sapo_tau_negative
            tau = torch.full_like(ratio, positive).where(good, negative)
            losses = -advantages * (4 / tau) * torch.sigmoid(tau * (ratio - 1))
            return Surrogate(losses, never, never, never)
        case "gmpo":
            log_ratio = ratio.log()
            low, high = log_ratio < -config.clip_low, log_ratio > config.clip_high
            low, high = low & bad, high & good
            inside = log_ratio.clamp(-config.clip_low, config.clip_high)
            held = torch.where(low | high, inside, log_ratio)
            losses = -advantages * _sequence_mean(held, mask).exp()
            return Surrogate(losses, low, high, never)
        case "vespo":
            weight = _vespo_weight(ratio, correction, advantages, mask, config)
            return Surrogate(-weight * advantages * logprobs, never, never, never)
    losses, dual = -torch.minimum(ratio * advantages, bounded * advantages), never
    if config.dual_clip is not None:
        capped = torch.minimum(losses, -config.dual_clip * advantages)
        losses = torch.where(bad, capped, losses)
        dual = bad & (ratio > config.dual_clip)
    return Surrogate(losses, low & bad, high & good, dual)


def _vespo_weight(
    ratio: torch.Tensor,
    correction: torch.Tensor | None,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor:
    total = (ratio.detach().log() * mask).sum(dim=1, keepdim=True)
    if correction is not None:  # of a sequence, so the same for each of its tokens
        total = total + correction.log().clamp(min=_LEAST_LOG_WEIGHT)
    log_weight = total.clamp(_LEAST_LOG_WEIGHT, 20.0)
    is_good = advantages >= 0
    power, decay = (
        torch.full_like(ratio, good).where(is_good, bad)
        for good, bad in (
            (config.vespo_power, config.vespo_power_negative),
            (config.vespo_decay, config.vespo_decay_negative),
        )
    )
    exponent = decay + power * log_weight - decay * log_weight.exp()
    return exponent.clamp(max=20.0).exp()


_LEAST_LOG_WEIGHT = math.log(1e-8)


def _sequence_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over each sequence's tokens, at all of its places, [B, T]."""
    length = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return ((values * mask).sum(dim=1, keepdim=True) / length).expand_as(values)


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """The totals of a whole batch, so that each of its parts is divided alike."""

    num_tokens: int
    num_sequences: int


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
    kl_full: torch.Tensor | None = None,
    kl_coef: float | None = None,
    entropy_coef: float | None = None,
    kept: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
    covered: torch.Tensor | None = None,
    totals: BatchTotals,
) -> tuple[torch.Tensor, TokenStatistics]:
    """Return the share of a batch's loss that the given sequences contribute.

    Summed over the parts of any split of the batch it is the batch's loss, since
    `totals` (of the whole batch) sets the divisor. `covered` are the places of the
    mask's ones in the flattened [B·T]; given, no GPU is waited for to find them.
    `kept` [B, T] is 0 on tokens whose entropy is too low, `chosen` 1 on those that the
    covariance chose; None where there is no such choice.
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
    gap = _gaps(old_logprobs, sampling_logprobs, mask, config)
    gap_now = _gaps(logprobs, sampling_logprobs, mask, config)
    correction: torch.Tensor | None = None
    if config.corrects_ratio:
        correction = importance_weights(config, gap.detach())
    losses, low, high, dual = surrogate_of(
        logprobs,
        old_logprobs,
        ratio,
        advantages,
        mask,
        config,
        correction=correction,
    )
    if chosen is not None and config.covariance == "kl":
        moved = (logprobs - old_logprobs).abs()
        losses = losses + config.covariance_coef * chosen * moved
    elif chosen is not None:
        kept = 1 - chosen if kept is None else kept * (1 - chosen)
    weight: torch.Tensor | None = token_weights(
        config,
        gap=gap.detach(),
        gap_now=gap_now.detach(),
        advantages=advantages,
        mask=mask,
    )
    if weight is not None:
        losses = losses * weight
    if correction is not None:  # which is in the surrogate already
        weight = correction if weight is None else correction * weight
    by_sequence = None if weight is None else sequence_weights(weight, mask)
    if kept is not None:
        losses = losses * kept
    if config.sampler_penalty > 0:
        losses = losses + config.sampler_penalty * gap_now.square()
    kl = _kl(logprobs, reference_logprobs, kl_full, inside, config)
    coef = config.kl_coef if kl_coef is None else kl_coef
    penalty = _kl_penalty(kl, ratio, gap, config, kl_coef=coef)
    bonus = config.entropy_coef if entropy_coef is None else entropy_coef
    losses = losses - _entropy_bonus(entropy, inside, bonus)
    differs = config.kl_aggregation not in (None, config.aggregation)
    if not differs:
        losses = losses + penalty
    if covered is None:
        covered = inside.flatten().nonzero().squeeze(1)
    if kl is not None and reference_logprobs is not None:
        kl = torch.where(reference_logprobs == NOT_ASKED, math.nan, kl)
    statistics = TokenStatistics.of(
        covered,
        ratio=ratio,
        low=low,
        high=high,
        dual=dual,
        kl=kl,
        entropy=entropy,
        weight=weight,
        kept=kept,
        mismatch=_mismatch(logprobs, old_logprobs, sampling_logprobs, config),
    )
    statistics = replace(statistics, sequence_weight=by_sequence)
    loss = aggregate(losses, mask, config, totals=totals)
    if differs and isinstance(penalty, torch.Tensor):
        other = config.model_copy(update={"aggregation": config.kl_aggregation})
        loss = loss + aggregate(penalty, mask, other, totals=totals)
    return loss, statistics


def _kl(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor | None,
    kl_full: torch.Tensor | None,
    inside: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor | None:
    """KL to the reference of each token, [B, T]; None where its source is not given.

    0 on tokens that the reference was not asked about.
    """
    if config.kl_estimator == "full":
        if kl_full is None or config.kl_clamp is None:
            return kl_full
        return kl_full.clamp(max=config.kl_clamp)
    if reference_logprobs is None:
        return None
    reference_logprobs = torch.where(inside, reference_logprobs, 0.0)
    is_unknown = reference_logprobs == NOT_ASKED
    # a number, so that no infinity enters the gradient
    reference_logprobs = torch.where(is_unknown, logprobs.detach(), reference_logprobs)
    kl = kl_estimate(logprobs, reference_logprobs, config.kl_estimator, config.kl_clamp)
    return torch.where(is_unknown, 0.0, kl)


def _mismatch(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor | None,
    config: LossConfig,
) -> torch.Tensor | None:
    """log π less the rollout engine's, [B, T], for the weights that it sampled with."""
    if sampling_logprobs is None:
        return None
    # Old log-probs that are the engine's own say nothing; those of now are the nearest.
    own = logprobs if config.old_logprobs == "sampling" else old_logprobs
    return own.detach() - sampling_logprobs


def _gaps(
    logprobs: torch.Tensor,
    sampling_logprobs: torch.Tensor | None,
    mask: torch.Tensor,
    config: LossConfig,
) -> torch.Tensor:
    """log π less the rollout engine's, [B, T], for what the loss does with it.

    0 for a token whose log-prob the engine failed to report (NaN), and outside of the
    mask: there is nothing to correct. Where nothing reads it, all are 0.
    """
    if not config.gap_settings:
        return torch.zeros_like(mask)
    assert sampling_logprobs is not None
    is_known = (mask > 0) & ~sampling_logprobs.isnan()
    return torch.where(is_known, logprobs - sampling_logprobs, 0.0)


def _kl_penalty(
    kl: torch.Tensor | None,
    ratio: torch.Tensor,
    gap: torch.Tensor,
    config: LossConfig,
    *,
    kl_coef: float,
) -> torch.Tensor | float:
    """Return each token's KL times its weight, [B, T].

    With `kl_ratio` also times π/π_old, and where there is a correction π_old/μ, since
    its mean over what μ sampled is then that over the policy.
    """
    if kl_coef == 0 or config.kl_in != "loss":
        return 0.0
    assert kl is not None
    if not config.kl_ratio:
        return kl_coef * kl
    if config.kl_clamp is not None:  # a bounded KL has no gradient
        ratio = torch.where(kl.abs() < config.kl_clamp, ratio, ratio.detach())
    if config.importance_correction is not None:
        ratio = ratio * importance_weights(config, gap.detach())
    return kl_coef * kl * ratio


def _entropy_bonus(
    entropy: torch.Tensor | None, inside: torch.Tensor, coef: float
) -> torch.Tensor | float:
    if coef == 0:
        return 0.0
    assert entropy is not None
    return coef * torch.where(inside, entropy, 0.0)


def aggregate(
    losses: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
    *,
    totals: BatchTotals,
) -> torch.Tensor:
    """Return one number from token losses [B, T].

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
            assert config.constant_length is not None  # as in `loss_of_run`
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
