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
    if not hasattr(linear, "lora_A"):
        return unpacked(linear.weight)
    weight = unpacked(linear.base_layer.weight)
    a, b = (part[ADAPTER].weight.detach() for part in (linear.lora_A, linear.lora_B))
    product = b.float() @ a.float()  # peft's own would round it to their format
    delta = (product.T if linear.fan_in_fan_out else product) * linear.scaling[ADAPTER]
    merged: torch.Tensor = (weight.float() + delta).to(weight.dtype)
    return merged
