"""How a token's ratio and advantage make its policy loss."""

from __future__ import annotations

import torch

from trainer.config import LossConfig


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


def compares_with_the_old_policy(loss: LossConfig) -> bool:
    """Whether the objective uses the policy's own log-probs before the batch."""
    uses_ratio = (
        loss.surrogate != "reinforce"
        or loss.importance_correction is not None
        or (loss.kl_ratio and loss.kl_coef > 0)
    )
    return loss.old_logprobs == "policy" and uses_ratio


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


def clipped_tokens(
    ratio: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the lower, the upper and the dual bound take the gradient; bool [B, T]."""
    low, high = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    never = torch.zeros_like(low)
    match config.surrogate:
        case "reinforce":
            return never, never, never
        case "cispo":
            return low, high, never
        case _:
            bad = advantages < 0
            dual = never if config.dual_clip is None else ratio > config.dual_clip
            return low & bad, high & (advantages > 0), dual & bad
