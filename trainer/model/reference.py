"""Reference models: none, the base beneath an adapter, or a frozen copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from trainer.config import ReferenceConfig, RunConfig
from trainer.config.run import Stage
from trainer.model.fingerprint import model_fingerprint
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy, load_policy
from trainer.serving.network import read_token
from trainer.serving.reference_client import ServerReference
from trainer.tensorfile import read_shapes, read_tensors, write_tensors


class Reference(Protocol):
    """Gives log-probs that do not depend on the step's update."""

    @property
    def has_moved(self) -> bool:
        """Whether a checkpoint must hold its weights."""
        ...

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        """Fill in each micro-batch's `reference_logprobs`."""
        ...

    def after_step(self, step: int, policy: Policy) -> None:
        """Reset to the policy or move towards it, where this step is due for it.

        Steps count from 1, since the beginning of the phase.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the weights of a reference that has moved into a new folder."""
        ...


def make_reference(
    stage: Stage, policy: Policy, *, saved: Path | None = None
) -> Reference | None:
    """The reference that a run or phase asks for; None where it asks for none.

    Args:
        stage: the phase, or the run where it has none. A frozen reference of a phase
            that goes on from another one's weights is the policy as it is now, not the
            starting model.
        policy: the policy it stands beside.
        saved: the folder that `save` wrote, when resuming with one that had moved.

    Raises:
        ValueError: the model cannot be loaded or the server cannot be used.
    """
    config = stage.config
    match stage.reference_kind:
        case "none":
            return None
        case "base":
            return base_of(policy, config)
        case "server":
            return reference_server(config)
        case "frozen":
            start = load_start(config, will_move=stage.reference_moves)
            reference = FrozenReference(
                start, config.reference, has_moved=stage.goes_on
            )
            if saved is not None:
                reference.restore(saved)
            elif stage.goes_on:
                reference.become(policy)
            return reference


def base_of(policy: Policy, config: RunConfig) -> BaseReference:
    """The policy without its adapters, where nobody else switches them."""
    whole = policy.whole
    if config.rollout.one_step_off and whole is not policy:
        # it is sampled from at the same time, with its adapters on
        whole = whole.copied(shares_fixed=True)
    return BaseReference(whole)


def reference_server(config: RunConfig) -> ServerReference:
    """The server that `config.reference` names, asked for its model.

    Raises:
        ValueError: it is not there, or holds another model.
    """
    url, token_file = config.reference.url, config.reference.token_file
    assert url is not None
    assert token_file is not None
    reference = ServerReference(
        url,
        token=read_token(Path(token_file)),
        fingerprint=model_fingerprint(
            config.model.path, revision=config.model.revision
        ),
    )
    reference.check_model()
    return reference


def load_start(config: RunConfig, *, will_move: bool = False) -> Policy:
    """The model that the run started from, held fixed.

    One whose weights `will_move` is not quantized: 4 bits cannot take them over.
    """
    changes: dict[str, Any] = {"lora_rank": 0, "gradient_checkpointing": False}
    if will_move:
        changes["quantization"] = "none"
    start = load_policy(config.model.model_copy(update=changes))
    start.model.eval().requires_grad_(requires_grad=False)
    return start


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
