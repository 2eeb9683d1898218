"""Engines that sample while the policy is trained, from its weights of before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import Decoding
from trainer.rollout.server_engine import VllmServerEngine


class Snapshot:
    """The policy as it was when it was last taken.

    Weights that are not trained are shared with it: under LoRA adapters, nearly all.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.policy = policy.copied(shares_fixed=True)

    def take(self) -> None:
        """Take over the policy's present weights."""
        present = dict(self._policy.model.named_parameters())
        with torch.no_grad():
            for name, weight in self.policy.model.named_parameters():
                if weight is not present[name]:
                    weight.copy_(present[name])


class SnapshotEngine(TransformersEngine):
    """Samples from the weights that the policy had when they were last synchronised."""

    def __init__(
        self, policy: Policy, *, max_batch_rows: int, decoding: Decoding = "auto"
    ) -> None:
        self._snapshot = Snapshot(policy)
        super().__init__(
            self._snapshot.policy, max_batch_rows=max_batch_rows, decoding=decoding
        )

    def sync_weights(self) -> None:
        self._snapshot.take()


class SnapshotServerEngine(VllmServerEngine):
    """Sends its servers a snapshot.

    A server that was started again in the middle of sampling is sent the weights that
    it sampled with, not those that are being trained by then.
    """

    def __init__(self, policy: Policy, urls: Sequence[str], **options: Any) -> None:
        self._snapshot = Snapshot(policy)
        super().__init__(self._snapshot.policy, urls, **options)

    def sync_weights(self) -> None:
        self._snapshot.take()
        super().sync_weights()
