"""Weights of tokens that another policy sampled than the one that is trained.

The loss hands over torch's tensors, a preview numpy's arrays: both run these lines,
and a preview's process has no torch.
With μ the sampler's probability of a token, π_old the trainer's before the batch's
first update and π its present one, d = ln π_old - ln μ.
"""

from __future__ import annotations

import sys
from typing import Any

from trainer.config import LossConfig

# exp() overflows float32 at 88; a weight of e^20 is bounded or hopeless anyway
_LARGEST = 20.0
_LEAST_REST = 1e-8  # of what is left to other tokens, so that its ratio is a number


def rounding_gap(*, is_float32: bool, is_gpu: bool) -> float:
    """Return mean |d| that rounding explains, nats a token.

    bfloat16 keeps 8 bits, and logits of 20 differ by 0.06; a GPU's float32 products
    keep 11 as TF32, as many as float16.
    """
    if not is_float32:
        return 0.03
    return 5e-3 if is_gpu else 1e-4


def token_weights(
    config: LossConfig, *, gap: Any, gap_now: Any, advantages: Any, mask: Any
) -> Any:
    """Return the weight of each token's surrogate loss, [B, T]; None without a setting.

    A token of weight 0 stays in the divisor of the loss.

    Args:
        config: of the loss.
        gap: d of each token [B, T]; 0 where μ is not known, and outside of the mask.
        gap_now: ln π - ln μ, likewise.
        advantages: [B, T].
        mask: [B, T], 1 on the tokens that the loss covers.
    """
    xp, weight = _module_of(gap), None
    if config.importance_correction is not None and not config.corrects_ratio:
        weight = importance_weights(config, gap)
    if config.geometric_mask is not None:
        # means of long sequences differ less than those of short ones
        is_kept = xp.abs(_mean(gap, mask)) <= config.geometric_mask
        weight = xp.where(is_kept, 1.0 + 0.0 * gap if weight is None else weight, 0.0)
    if config.off_policy_mask is not None:
        is_left = (advantages < 0) & (-_mean(gap_now, mask) > config.off_policy_mask)
        weight = xp.where(is_left, 0.0, 1.0 + 0.0 * gap if weight is None else weight)
    return weight


def importance_weights(config: LossConfig, gap: Any) -> Any:
    """Return e^d of each token, or of its whole sequence (the product), in its bounds.

    Truncate: clamp(w, floor, cap). Mask: w where floor ≤ w ≤ cap, else 0; of tokens
    with both bounds that is IcePop (arXiv:2510.18855).
    """
    assert config.importance_correction is not None
    level, action = config.importance_correction.split("_")
    xp, floor, cap = _module_of(gap), config.importance_floor, config.importance_cap
    if level == "sequence":
        gap = xp.broadcast_to(gap.sum(axis=1, keepdims=True), gap.shape)
    weight = xp.exp(xp.clip(gap, -_LARGEST, _LARGEST))
    if action == "truncate":
        return xp.clip(weight, floor or 0.0, cap)
    return xp.where((weight >= (floor or 0.0)) & (weight <= cap), weight, 0.0)


def leaves_region(
    config: LossConfig, *, logprobs: Any, old_logprobs: Any, advantages: Any
) -> tuple[Any, Any]:
    """Return where π is too far below and above μ, and A draws it further; bool [B, T].

    Far is by |π - μ|, or by the KL of whether the token is drawn, (μ, 1 - μ) from
    (π, 1 - π): beyond clip_low below and clip_high above.

    Args:
        config: of the loss; its surrogate is one of DPPO's.
        logprobs: ln π of each token [B, T], without a gradient.
        old_logprobs: ln μ.
        advantages: [B, T].
    """
    xp = _module_of(logprobs)
    now, old = xp.exp(logprobs), xp.exp(old_logprobs)
    distance = xp.abs(now - old)
    if config.surrogate == "dppo_kl":
        rest, old_rest = 1 - now + _LEAST_REST, 1 - old + _LEAST_REST
        distance = old * (old_logprobs - logprobs)
        distance = distance + (1 - old) * xp.log(old_rest / rest)
    is_lower = (advantages < 0) & (now < old) & (distance > config.clip_low)
    return is_lower, (advantages > 0) & (now > old) & (distance > config.clip_high)


def effective_share(weights: Any) -> float:
    """Return (Σw)² / (n·Σw²) of weights [n]: the share of samples that are as good as
    equally weighted ones; 0 where all are 0.
    """
    squares = float((weights * weights).sum())
    total = float(weights.sum())
    return total * total / (len(weights) * squares) if squares > 0 else 0.0


def sequence_weights(weights: Any, mask: Any) -> Any:
    """Return the mean weight of each sequence's tokens, [B]; NaN: it has none."""
    xp, counts = _module_of(mask), mask.sum(axis=1)
    return xp.where(counts > 0, _mean(weights, mask)[:, 0], float("nan"))


def _mean(values: Any, mask: Any) -> Any:
    """Mean over each sequence's tokens, [B, 1]."""
    counts = _module_of(mask).clip(mask.sum(axis=1, keepdims=True), 1, None)
    return (values * mask).sum(axis=1, keepdims=True) / counts


def _module_of(values: Any) -> Any:
    return sys.modules[type(values).__module__.partition(".")[0]]
