"""Adapters as they are handed to whatever samples with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
