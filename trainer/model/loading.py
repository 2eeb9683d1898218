"""Loading a model: its device, dtype, 4 bits and architecture."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from trainer.config import ModelConfig
from trainer.host import keep_large_blocks
from trainer.tokenizers import first_line

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Positions of the other kinds depend on how long the text has become.
_ROPES = ("default", "linear", "llama3")


def is_built_like_llama(model: PreTrainedModel) -> bool:
    """Whether each layer is known: norm, attention to all tokens, norm, gated MLP.

    Its linear maps may have adapters, and weights in 4 bits.
    """
    if type(model) not in _KINDS:
        return False
    config: Any = model.config
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if has_window else "full_attention"]
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.hidden_act == "silu"
        and set(kinds) == {"full_attention"}
        and rope.get("rope_type", "default") in _ROPES
    )


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


def load_model(
    source: str, config: ModelConfig, *, revision: str | None
) -> PreTrainedModel:
    """The model of a folder or hub id, on its device and in its number format.

    Raises:
        ValueError: it cannot be read, or there is no GPU though one is asked for.
    """
    device = pick_device(config)
    prepare_device(device, tf32=config.tf32)
    dtype = pick_dtype(config, device)
    if config.quantization == "4bit":
        settings = four_bit_settings(device=device, dtype=dtype)
        model = _read(source, revision=revision, dtype=dtype, **settings)
        keep_packing(model)
        return model
    model = _read(source, revision=revision, dtype=dtype)
    model.to(device=device)  # type: ignore[call-arg]  # torch overloads it
    for parameter in model.parameters():
        # Weights read from a file may lie at any address, and matrix routines choose
        # their order of summation by it; own memory gives every run the same bits.
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model


def _read(
    source: str, *, revision: str | None, dtype: torch.dtype, **settings: Any
) -> PreTrainedModel:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source,
            revision=revision or "main",
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,  # else a person at a terminal is asked
            **settings,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"The model {source} cannot be loaded: {first_line(error)}"
        ) from error
    assert isinstance(model, PreTrainedModel)
    model.eval()
    return model


def prepare_device(device: torch.device, *, tf32: bool = True) -> None:
    """Set torch up for a model's passes on this device."""
    if device.type == "cpu":
        keep_large_blocks()
    elif device.type == "cuda":
        # cuDNN plans attention anew for each shape, and each token of a completion is a
        # new one: 72 ms a token of the starter model, 3 ms without (H100, torch 2.11).
        torch.backends.cuda.enable_cudnn_sdp(False)
        # not `matmul.fp32_precision`, after which torch.compile's guards raise an error
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def pick_device(config: ModelConfig) -> torch.device:
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ValueError(
            'model.device is "cuda", but no GPU is visible here. Set it to "auto" or '
            "run on a machine with a GPU."
        )
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """float32 on a CPU: without AVX-512 or AMX, bfloat16 is 17 times slower there."""
    if config.dtype != "auto":
        return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if fast else torch.float32
