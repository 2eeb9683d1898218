"""Adapters as they are handed to whatever samples with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainer.model.loading import unpacked

ADAPTER = "default"  # the name that peft knows it by


@dataclass(frozen=True, kw_only=True)
class AdapterWeights:
    """LoRA's A and B by peft's names, such as model.layers.0.mlp.up_proj.lora_A.weight.

    A weight has (alpha / rank) · B·A added to it.
    """

    tensors: tuple[tuple[str, torch.Tensor], ...]
    rank: int
    alpha: float

    @property
    def layers(self) -> set[str]:
        return {name.rpartition(".lora_")[0] for name, _ in self.tensors}


def merged_weight(linear: Any) -> torch.Tensor:
    """A linear map's weight with its adapter, if it has one: W + (alpha / rank) · B·A.

    In W's number format; a W in 4 bits is unpacked first.
    """
    if not hasattr(linear, "get_delta_weight"):
        return unpacked(linear.weight)
    weight = unpacked(linear.base_layer.weight)
    delta: torch.Tensor = linear.get_delta_weight(ADAPTER)
    return (weight.float() + delta.detach()).to(weight.dtype)
