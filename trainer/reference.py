"""The frozen model that the KL is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.batch import MicroBatch
from trainer.config import RunConfig
from trainer.policy import Policy, load_policy


def load_reference(config: RunConfig) -> Policy | None:
    """A second copy of the starting model, or None where no KL is asked for."""
    kind = config.reference.kind
    if kind == "none" or (kind == "auto" and config.loss.kl_coef == 0):
        return None
    reference = load_policy(config.model)
    reference.model.eval().requires_grad_(requires_grad=False)
    return reference


def add_reference_logprobs(
    reference: Policy, micro_batches: Sequence[MicroBatch], *, temperature: float
) -> None:
    """Fill in each micro-batch's `reference_logprobs`."""
    with torch.no_grad():
        for micro in micro_batches:
            micro.reference_logprobs, _ = reference.logprobs(
                micro, temperature=temperature
            )
