"""A second copy of a model, which stands still or follows the policy in steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.config import ReferenceConfig
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.tensorfile import read_shapes, read_tensors, write_tensors

_WEIGHTS = "weights.safetensors"


class FrozenReference:
    """A model of its own, from which the policy's steps do not reach.

    With `reset_every_steps` = n the policy becomes the reference after each n-th step
    (arXiv:2402.03300, Algorithm 1); with `mix_every_steps` the reference becomes
    α · policy + (1 - α) · reference, α = `mix_alpha` (arXiv:2404.09656).
    """

    def __init__(
        self, model: Policy, config: ReferenceConfig, *, has_moved: bool = False
    ) -> None:
        self.policy = model
        self.has_moved = has_moved
        self._config = config
        self._masters = _masters(model) if config.mix_every_steps else {}

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        with torch.no_grad():
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
        with torch.no_grad():
            return self.policy.hidden(micro)

    def after_step(self, step: int, policy: Policy) -> None:
        config = self._config
        if config.reset_every_steps and step % config.reset_every_steps == 0:
            self.become(policy)
        elif config.mix_every_steps and step % config.mix_every_steps == 0:
            self._mix(policy, share=config.mix_alpha)

    def become(self, policy: Policy) -> None:
        """Take over the policy's present weights, its adapters merged into them."""
        self._mix(policy, share=1.0)

    def _mix(self, policy: Policy, *, share: float) -> None:
        own = self._weights()
        with torch.no_grad():
            for name, weight in policy.weights():
                kept = own[name]
                exact = self._masters.get(name, kept)
                if share == 1.0:
                    exact.copy_(weight)
                else:
                    exact.lerp_(weight.to(exact.dtype), share)
                if exact is not kept:
                    kept.copy_(exact)
        self.has_moved = True

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        write_tensors(folder / _WEIGHTS, self._weights() | self._masters)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            ValueError: the weights are those of another model.
        """
        kept = self._weights()
        if read_shapes(folder / _WEIGHTS) != _shapes(kept):
            raise ValueError(
                f"{folder} holds the reference of another model. Resume with the "
                "configuration that the checkpoint was made with."
            )
        with torch.no_grad():
            for name, tensor in read_tensors(folder / _WEIGHTS):
                kept[name].copy_(tensor)
                if name in self._masters:
                    self._masters[name].copy_(tensor)
        self.has_moved = True

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.policy.model.named_parameters())


def _masters(model: Policy) -> dict[str, torch.Tensor]:
    """Weights in float32 where they are kept in less.

    A small share of a small difference would be rounded away in bfloat16, each time.
    """
    return {
        name: weight.detach().float()
        for name, weight in model.model.named_parameters()
        if weight.dtype != torch.float32
    }


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}
