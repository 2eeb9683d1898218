"""Loads a model (device, dtype, 4 bits) and computes its fingerprint."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from trainer.config import ModelConfig
from trainer.console import print_error
from trainer.host import keep_large_blocks
from trainer.hub import check_source, weight_files
from trainer.tokenizers import first_line

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Positions of the other kinds depend on how long the text has become.
_ROPES = ("default", "linear", "llama3")
ADAPTER = "default"  # the name that peft knows an adapter by


def is_built_like_llama(model: PreTrainedModel) -> bool:
    """Return whether each layer is known: norm, attention to all tokens, norm, gated
    MLP.

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


def unpacked(weight: torch.nn.Parameter) -> torch.Tensor:
    """Return the numbers that a weight stands for, as they are where it is not
    quantized.
    """
    state: Any = getattr(weight, "quant_state", None)  # bitsandbytes' own
    if state is None:
        return weight.detach()
    functional = importlib.import_module("bitsandbytes.functional")
    weights: torch.Tensor = functional.dequantize_4bit(weight.data, state)
    return weights


def has_four_bits(model: PreTrainedModel) -> bool:
    return any(hasattr(weight, "quant_state") for weight in model.parameters())


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
    """Return a linear map's weight with its adapter, if it has one: W + (alpha / rank)
    · B·A.

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


def load_model(
    source: str, config: ModelConfig, *, revision: str | None
) -> PreTrainedModel:
    """Return the model of a folder or hub id, on its device and in its number format.

    Raises:
        ValueError: it cannot be read, or there is no GPU though one is asked for.
    """
    device = pick_device(config)
    prepare_device(device, tf32=config.tf32)
    dtype = pick_dtype(config, device)
    settings: dict[str, Any] = {"device_map": {"": device}}
    if config.quantization == "4bit":  # linear layers in NF4 (arXiv:2305.14314)
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    if config.quantization == "4bit" or device.type == "cuda":
        # past the host's memory, which no rank of a GPU then fills
        return _read(source, revision=revision, dtype=dtype, **settings)
    model = _read(source, revision=revision, dtype=dtype)
    for parameter in model.parameters():
        # Weights read from a file may lie at any address, and matrix routines choose
        # their order of summation by it; own memory gives every run the same bits.
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model


def _read(
    source: str, *, revision: str | None, dtype: torch.dtype, **settings: Any
) -> PreTrainedModel:
    try:
        saved, _ = PreTrainedConfig.get_config_dict(source, revision=revision or "main")
        kind = saved.get("model_type")
        if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and (
            kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        ):
            raise ValueError(f"{kind} reads pictures. Choose a model of text alone.")
        auto: Any = AutoModelForCausalLM
        model, info = auto.from_pretrained(
            source,
            revision=revision or "main",
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,  # else a person at a terminal is asked
            output_loading_info=True,
            **settings,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"The model {source} cannot be loaded: {first_line(error)}"
        ) from error
    assert isinstance(model, PreTrainedModel)
    refuse_missing(source, info["missing_keys"])
    if unused := sorted(info["unexpected_keys"]):
        print_error(
            f"The model {source} has {_named(unused)}, which {type(model).__name__} "
            "does not use."
        )
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "time_step_limit"):
            # a step has no bounds while a token is sampled, here or in vLLM
            layer.time_step_limit = (0.0, math.inf)
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            # else 4-bit weights may be packed again when the model is first sampled,
            # with coarser constants, and be other ones than are trained
            layer.support_avx512bf16_for_cpu = False
    model.eval()
    return model


def refuse_missing(source: str, names: Iterable[str]) -> None:
    """Refuse weights that no file has: transformers would draw them at random."""
    if missing := sorted(names):
        raise ValueError(
            f"The model {source} lacks {_named(missing)}. Copy or download it again."
        )


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} {'tensor' if len(names) == 1 else 'tensors'} ({shown})"


def prepare_device(device: torch.device, *, tf32: bool = True) -> None:
    """Set torch up for a model's passes on this device."""
    if device.type == "cpu":
        keep_large_blocks()
    elif device.type == "cuda":
        # cuDNN plans attention for each shape, and each token of a completion is a new
        # one: 72 ms a token of the starter model, 3 ms without (H100, torch 2.11).
        torch.backends.cuda.enable_cudnn_sdp(False)
        # not `matmul.fp32_precision`, after which torch.compile's guards raise an error
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def pick_device(config: ModelConfig, *, setting: str = "model.device") -> torch.device:
    """Return the device to load a model on; `setting`: what the user names it by.

    Raises:
        ValueError: there is no GPU, or torch has no kernels for it.
    """
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ValueError(
            f'No GPU is visible here, but {setting} is "cuda". Set it to "auto" or '
            "run on a machine with a GPU."
        )
    if not available or config.device == "cpu":
        return torch.device("cpu")
    gpu: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    built = [
        int(name[3:].rstrip("af"))
        for name in torch.cuda.get_arch_list()
        if "sm_" in name
    ]
    if 10 * gpu.major + gpu.minor < min(built, default=0):
        raise ValueError(
            f"The {gpu.name} has compute capability {gpu.major}.{gpu.minor}; torch "
            f"{torch.__version__} needs {min(built) / 10} or newer. Set {setting} "
            'to "cpu", or use a newer GPU.'
        )
    return torch.device("cuda")


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """float32 on a CPU: without AVX-512 or AMX, bfloat16 is 17 times slower there."""
    if config.dtype != "auto":
        return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    if device.type != "cuda":
        return torch.float32
    # older GPUs than Ampere (8.0) emulate bfloat16, which torch counts as support
    gpu: Any = torch.cuda.get_device_properties(device)
    return torch.bfloat16 if gpu.major >= 8 else torch.float32


# Rows read of each weight. A training step moves nearly every number of it.
NUM_ROWS = 8
# These say how a model was saved, not what it computes.
_IGNORED = {
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


def model_fingerprint(source: str, *, revision: str | None = None) -> str:
    """Return SHA-256 over a saved model's settings, its weights' shapes and rows of
    each.

    The rows are read from the files, without loading the model, and rounded to
    bfloat16: the same model saved in another number format or in other pieces keeps
    its fingerprint, and one trained further does not.

    Raises:
        ValueError: the folder or hub id holds no model in safetensors.
    """
    check_source(source, revision=revision)
    config = read_settings(source, revision=revision)
    settings = {k: v for k, v in config.to_dict().items() if k not in _IGNORED}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, shape, rows in sorted(_rows(source, revision), key=lambda row: row[0]):
        digest.update(json.dumps([name, shape]).encode())
        digest.update(rows.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def num_parameters(source: str, *, revision: str | None = None) -> int:
    """Return numbers in a saved model's weights; raises as `model_fingerprint` does."""
    return sum(math.prod(shape) for _, shape, _ in _rows(source, revision))


def in_checkpoint_form(
    model: PreTrainedModel, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield weights with the names and shapes of the model's checkpoint, layer by
    layer.

    transformers joins a layer's experts in one tensor, whose name not all kinds of
    models have in vLLM.
    """
    for _, layer in groupby(weights, _layer_of):
        yield from revert_weight_conversion(model, dict(layer)).items()


def _layer_of(named: tuple[str, torch.Tensor]) -> str:
    number = re.search(r"\.\d+\.", named[0])
    return named[0][: number.end()] if number else ""


def read_settings(source: str, *, revision: str | None) -> PreTrainedConfig:
    """Read a saved model's settings.

    Raises:
        ValueError: they cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(
            source, revision=revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"The settings of the model {source} cannot be read: {first_line(error)}"
        ) from error
    assert isinstance(config, PreTrainedConfig)
    return config


def _rows(
    source: str, revision: str | None
) -> Iterator[tuple[str, list[int], torch.Tensor]]:
    files = weight_files(source, revision)
    missing = [name for name, file in files.items() if file is None]
    if missing:
        raise ValueError(
            f"The model {source} has no {missing[0]}. Save its weights as safetensors."
        )
    for path in [file for file in files.values() if file is not None]:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                tensor = file.get_slice(name)
                shape = tensor.get_shape()
                if not shape:
                    yield name, shape, file.get_tensor(name).reshape(1)
                    continue
                count = min(NUM_ROWS, shape[0])
                # evenly from the first to the last, so that an end is never left out
                places = [k * (shape[0] - 1) // max(count - 1, 1) for k in range(count)]
                if len(shape) == 1:
                    yield name, shape, tensor[:]
                else:
                    yield name, shape, torch.cat([tensor[k : k + 1] for k in places])
