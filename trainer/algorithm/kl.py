"""KL estimators and the controller of an adaptive KL weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Estimator = Literal["k1", "abs", "k2", "k3", "full", "k1+", "abs+", "k3+"]

# exp() overflows float32 at 88; a gap of 20 nats already counts as 4.9e8 in k3.
_MAX_LOG_RATIO = 20.0


def kl_estimate(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    estimator: Estimator,
    clamp: float | None = None,
) -> torch.Tensor:
    """KL(policy || reference) of each token, from its log-probs; the shape is kept.

    With d = logprob - reference (Schulman 2020, "Approximating KL divergence"):
    k1 = d, abs = |d|, k2 = d²/2, k3 = exp(-d) + d - 1. `full` is one term
    p·d of the exact sum: given log-probs of the whole vocabulary, the sum over that
    axis is the divergence itself. k3 takes d within ±20 nats.

    A + keeps the value and takes k2's gradient, d, whose expectation under the policy
    is the gradient of the divergence; that of k1's is 0.

    Args:
        logprobs: nats, any shape.
        reference_logprobs: nats, same shape.
        clamp: bounds each value to [-clamp, clamp]; a bounded value has no gradient,
            but for the + estimators, which keep k2's.

    >>> kl_estimate(torch.tensor(-1.2), torch.tensor(-1.0), "k3")
    tensor(0.0214)
    """
    gap = logprobs - reference_logprobs
    value = _value(gap, logprobs, estimator.removesuffix("+"))
    if clamp is not None:
        value = value.clamp(-clamp, clamp)
    if not estimator.endswith("+"):
        return value
    slope = gap.square() / 2
    return value.detach() + (slope - slope.detach())


def _value(gap: torch.Tensor, logprobs: torch.Tensor, name: str) -> torch.Tensor:
    match name:
        case "k1":
            return gap
        case "abs":
            return gap.abs()
        case "k2":
            return gap.square() / 2
        case "k3":
            bounded = gap.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
            # expm1 keeps the digits that exp(-d) - 1 loses where d is small
            return torch.expm1(-bounded) + bounded
        case _:
            assert name == "full"
            return logprobs.exp() * gap


_MAX_ERROR = 0.2


@dataclass
class AdaptiveKL:
    """Raises the weight while the KL is above its target, lowers it while below.

    error = clip(kl / target - 1, ±0.2); coef ← coef · (1 + error · n / horizon), where
    n completions, at most a horizon of them, were seen since the last change
    (arXiv:1909.08593, section 2.2).

    >>> controller = AdaptiveKL(coef=0.1, target=6.0, horizon=1000)
    >>> controller.update(12.0, 100)
    >>> round(controller.coef, 6)
    0.102
    """

    coef: float
    target: float
    horizon: int

    def update(self, kl_per_completion: float, num_completions: int) -> None:
        """Take in the mean KL of some completions, in nats a completion.

        A KL that is not a number leaves the weight as it is.
        """
        error = kl_per_completion / self.target - 1
        if error != error:
            return
        error = min(max(error, -_MAX_ERROR), _MAX_ERROR)
        # more completions than the horizon would turn the weight's sign
        share = min(num_completions / self.horizon, 1.0)
        self.coef *= 1 + error * share
