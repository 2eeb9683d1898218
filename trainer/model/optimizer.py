"""AdamW with float32 master weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from trainer.config import OptimConfig
from trainer.model.policy import Policy
from trainer.parallel.fsdp import add_replicas, spread_like, whole


class Optimizer:
    """AdamW over a policy's weights, in float32 whatever the weights are kept in.

    A bfloat16 weight of 0.02 moves in steps of 1e-4: an update of 1e-6 would be rounded
    away. Such weights have a float32 master here, which is updated and copied back.
    """

    def __init__(self, policy: Policy, config: OptimConfig) -> None:
        self._config = config
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self._parameters
        ]
        self._shards_are_masters = policy.shards_are_masters
        self._replicas = policy.replicas
        self._adamw = _adamw(self._masters, config)

    def add_replicas(self) -> None:
        """Add up the gradients of nodes that each have the whole model in parts.

        All processes must do so, once behind all passes of an update.
        """
        if self._replicas is not None:
            gradients = [p.grad for p in self._masters if p.grad is not None]
            add_replicas(gradients, self._replicas)

    def gradient_norm(self) -> torch.Tensor:
        """Return the norm of all gradients, which all processes must ask for."""
        gradients = [p.grad for p in self._masters if p.grad is not None]
        return whole(torch.nn.utils.get_total_norm(gradients))

    def step(self, norm: torch.Tensor, *, learning_rate: float) -> None:
        """Apply the gradients, cut to the largest norm; `norm` is theirs now."""
        if self._config.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(
                self._masters, self._config.max_grad_norm, norm
            )
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._lower_weights()
        self.clear()

    @property
    def missing_bytes(self) -> int:
        """Bytes of the moments in this process that the first step makes."""
        bytes_per_parameter = 8 if self._config.optimizer == "adamw" else 2
        return bytes_per_parameter * sum(
            (p.to_local() if isinstance(p, DTensor) else p).numel()
            for p in self._masters
            if p not in self._adamw.state
        )

    def forget(self) -> None:
        """Drop the moments and the count of steps, as a new optimizer has none."""
        self._adamw.state.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in (*self._parameters, *self._masters):
            parameter.grad = None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Let a backward pass inside add to the masters' gradients, in float32.

        Each weight's own gradient is freed as soon as it is there, so that never all
        of them are in memory.
        """
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_collect, master))
            for parameter, master in self._mastered()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _lower_weights(self) -> None:
        pairs = self._mastered()
        if pairs:
            parameters, masters = zip(*pairs, strict=True)
            with torch.no_grad():
                torch._foreach_copy_(parameters, masters)

    def _mastered(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = zip(self._parameters, self._masters, strict=True)
        return [(p, master) for p, master in pairs if p is not master]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all that the next step depends on, as named tensors."""
        return dict(self.tensors())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """`state`, one after the other: whole ones are larger than a process's part.

        All processes must go through them together.
        """
        return ((name, whole(part)) for name, part in self.parts())

    def parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """`tensors` with the shapes that they have whole, but only this process's part.

        No one else is asked for anything.
        """
        for index, (p, master) in enumerate(
            zip(self._parameters, self._masters, strict=True)
        ):
            for name, value in self._adamw.state.get(master, {}).items():
                yield f"{index}.{name}", _as_tensor(name, value)
            if p is not master or self._shards_are_masters:
                yield f"{index}.master", master.detach()

    def load_state_dict(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Continue from what `tensors` gave, in any order."""
        self.forget()
        for key, tensor in tensors:
            index, name = key.split(".")
            master = self._masters[int(index)]
            if name == "master":
                with torch.no_grad():
                    master.copy_(spread_like(master, tensor))
            else:
                # own memory, for the same reason as the policy's weights
                value = tensor.clone()
                value = (
                    spread_like(master, value)
                    if value.shape == master.shape
                    else value.to(master.device)
                )
                is_count = name == "step" and not value.is_floating_point()
                self._adamw.state[master][name] = (
                    int(value.item()) if is_count else value
                )
        self._lower_weights()


def _collect(master: torch.Tensor, parameter: torch.Tensor) -> None:
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    if master.grad is None:
        master.grad = gradient.float()
    else:
        master.grad += gradient


def _adamw(
    parameters: Sequence[torch.Tensor], config: OptimConfig
) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, fused=True, **settings)
    # only where it is asked for: loading it takes seconds
    eight_bit: type[torch.optim.Optimizer] = importlib.import_module(
        "bitsandbytes.optim"
    ).AdamW8bit
    return eight_bit(parameters, **settings)


def _as_tensor(name: str, value: torch.Tensor | int) -> torch.Tensor:
    """bitsandbytes counts in an int, and its weights share their tables (qmap)."""
    if isinstance(value, int):
        return torch.tensor(value)
    return value.clone() if name.startswith("qmap") else value
