"""The loss of a whole batch, as of one part."""

import torch

from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig

AGGREGATIONS = (
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "constant",
)


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
    kl_full: torch.Tensor | None = None,
    kl_coef: float | None = None,
    entropy_coef: float | None = None,
    kept: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of a batch, and its statistics.

    Args:
        logprobs: [B, T], nats, under the policy being trained.
        old_logprobs: [B, T], those that the ratio compares with: of the policy before
            the first update of this batch, or as the rollout engine reported them.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on the tokens that the loss covers.
        reference_logprobs: [B, T]; needed for a KL in the loss.
        sampling_logprobs: [B, T], as the rollout engine reported them, NaN where it
            sampled nothing; needed when config.importance_correction is set.
        entropy: [B, T], of the policy's distribution at each token; needed when
            config.entropy_coef > 0.
        kl_full: [B, T], the divergence over the vocabulary at each token; needed in
            place of reference_logprobs when config.kl_estimator is "full".
        kl_coef: weight of the KL where it adapts; None: config.kl_coef.
        entropy_coef: weight of the bonus where it adapts; None: config.entropy_coef.
        kept: [B, T], 0 on tokens of too low an entropy.
        chosen: [B, T], 1 on those that the covariance chose.
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
        kl_full=kl_full,
        kl_coef=kl_coef,
        entropy_coef=entropy_coef,
        kept=kept,
        chosen=chosen,
        totals=totals,
    )
    return loss, {"loss": loss.item(), **statistics.metrics()}
