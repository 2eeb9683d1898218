"""Weights in 4 bits, through bitsandbytes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel


def four_bit_settings(*, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What loads a model with its linear layers in NF4 (arXiv:2305.14314)."""
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def keep_packing(model: PreTrainedModel) -> None:
    """Let 4-bit weights stay as they were read.

    On some CPUs bitsandbytes would pack them anew when the model is first sampled, with
    coarser constants, so that the policy sampled would not be the one trained.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def unpacked(weight: torch.nn.Parameter) -> torch.Tensor:
    """The numbers that a weight stands for, as they are where it is not quantized."""
    state: Any = getattr(weight, "quant_state", None)  # bitsandbytes' own
    if state is None:
        return weight.detach()
    functional = importlib.import_module("bitsandbytes.functional")
    found: torch.Tensor = functional.dequantize_4bit(weight.data, state)
    return found


def has_four_bits(model: PreTrainedModel) -> bool:
    return any(hasattr(weight, "quant_state") for weight in model.parameters())
