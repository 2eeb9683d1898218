"""The model under the policy's adapters, which costs no memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy


class BaseReference:
    """The policy with its adapters switched off while it is asked."""

    has_moved = False

    def __init__(self, policy: Policy) -> None:
        assert policy.has_adapters
        self.policy = policy

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        with torch.no_grad(), self.policy.adapters_off():
            for micro in micro_batches:
                micro.reference_logprobs, _ = self.policy.logprobs(
                    micro, temperature=temperature
                )

    @property
    def head(self) -> torch.nn.Linear:
        return self.policy.head

    @property
    def logit_scale(self) -> float:
        return self.policy.logit_scale

    def hidden(self, micro: MicroBatch) -> torch.Tensor:
        with torch.no_grad(), self.policy.adapters_off():
            return self.policy.hidden(micro)

    def after_step(self, step: int, policy: Policy) -> None:
        """It stays as it is; configurations that want more are refused."""

    def save(self, folder: Path) -> None:
        raise AssertionError("the base under adapters never moves")
