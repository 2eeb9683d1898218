"""LoRA adapters in a model, and a 4-bit base model.

An adapter adds (alpha / rank) · B·A to a weight; only A and B are trained
(arXiv:2106.09685). peft inserts them into the model's layers, so the model is sharded,
sampled and saved like any other.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from trainer.config import ModelConfig
from trainer.model.loading import ADAPTER, AdapterWeights, merged_weight, unpacked

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_BASE = "base.sha256"
# peft reads a folder's names with this before them.
_PREFIX = "base_model.model."


class Adapters:
    """The adapters in a model, which were made for the base with a fingerprint."""

    def __init__(self, model: PreTrainedModel, *, base: str) -> None:
        self._model = model
        self._base = base

    def of(self, model: PreTrainedModel) -> Adapters:
        """Return the same in a copy of the model."""
        return Adapters(model, base=self._base)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Make the model its base inside."""
        layers = [layer for _, layer in _layers(self._model)]
        for layer in layers:
            layer.enable_adapters(enabled=False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(enabled=True)

    def merged_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of the model, each with the name that it has without
        adapters.

        One at a time: together the merged ones are as large as the model.
        """
        adapted = {f"{n}.base_layer.weight": layer for n, layer in _layers(self._model)}
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                if ".lora_A." in name or ".lora_B." in name:
                    continue
                layer = adapted.get(name)
                weight = unpacked(parameter) if layer is None else merged_weight(layer)
                yield name.replace(".base_layer.", "."), weight

    def base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights under the adapters, as `merged_weights` names them."""
        for name, parameter in self._model.named_parameters():
            if ".lora_A." not in name and ".lora_B." not in name:
                yield name.replace(".base_layer.", "."), unpacked(parameter)

    def weights(self) -> AdapterWeights:
        """Return the adapters by themselves; the tensors are the model's own."""
        config = _config(self._model)
        return AdapterWeights(
            tensors=tuple(
                get_peft_model_state_dict(self._model, adapter_name=ADAPTER).items()
            ),
            rank=config.r,
            alpha=float(config.lora_alpha),
        )

    def save(self, folder: Path) -> None:
        """Write the adapters as peft does, so that peft loads them elsewhere too."""
        folder.mkdir(parents=True)
        (folder / _BASE).write_text(f"{self._base}\n")
        _config(self._model).save_pretrained(str(folder))
        saved = json.loads((folder / _CONFIG).read_bytes())
        # peft has them in a set
        saved["target_modules"] = sorted(saved["target_modules"])
        (folder / _CONFIG).write_text(
            json.dumps(saved, indent=2, sort_keys=True) + "\n"
        )
        weights = get_peft_model_state_dict(self._model, adapter_name=ADAPTER)
        save_file(
            {f"{_PREFIX}{name}": w.contiguous() for name, w in weights.items()},
            folder / _WEIGHTS,
        )

    def save_merged(self, folder: Path) -> None:
        """Write the model as one that has no adapters, for any program to load."""
        config = copy.deepcopy(self._model.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        with torch.device("meta"):
            shell = type(self._model)(config)
        weights = {name: weight.cpu() for name, weight in self.merged_weights()}
        shell.load_state_dict(weights, strict=False, assign=True)  # tied ones come next
        shell.tie_weights()
        shell.generation_config = self._model.generation_config
        shell.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote for adapters of the same shape.

        Raises:
            ValueError: they have another rank, alpha or layers, or were made for
                another model than these.
        """
        if (folder / _BASE).read_text().strip() != self._base:
            raise ValueError(
                f"model.path is not the model of the adapters in {folder}. Set it to "
                "that model, in the same version."
            )
        saved = json.loads((folder / _CONFIG).read_bytes())
        weights = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in load_file(folder / _WEIGHTS).items()
        }
        own = get_peft_model_state_dict(self._model, adapter_name=ADAPTER)
        is_other = saved["lora_alpha"] != _config(self._model).lora_alpha
        if is_other or _shapes(weights) != _shapes(own):
            raise ValueError(
                f"The adapters in {folder} (rank {saved['r']}, alpha "
                f"{saved['lora_alpha']:g}) do not match this configuration. Set "
                "model.lora_rank, lora_alpha and lora_targets to their values."
            )
        set_peft_model_state_dict(self._model, weights, adapter_name=ADAPTER)


def add_adapters(model: PreTrainedModel, config: ModelConfig) -> None:
    """Put adapters into a model's layers, and let nothing else be trained.

    B begins at 0, so the model is the same as before. A and B are in the format that
    `adapter_dtype` tells; the optimizer has float32 masters of what is not float32.

    Raises:
        ValueError: no layer, or one that cannot have an adapter, is asked for.
    """
    alpha = config.lora_alpha or 2.0 * config.lora_rank
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # peft itself only divides it
        target_modules=_targets(model, config.lora_targets),
        lora_dropout=0.0,  # else the policy trained is not the one sampled
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=config.path,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    inject_adapter_in_model(lora, model, adapter_name=ADAPTER)
    dtype = adapter_dtype(model.dtype, model.device)
    for parameter in [
        parameter
        for _, layer in _layers(model)
        for parts in (layer.lora_A, layer.lora_B)
        for parameter in parts.parameters()
    ]:
        parameter.data = parameter.data.to(dtype)


def adapter_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the number format of A and B in a model of some format: on a GPU the same.

    Where theirs is another, peft makes a copy of each adapted layer's input, and
    multiplies in float32, which is slow there.
    """
    return dtype if device.type == "cuda" else torch.float32


def _config(model: PreTrainedModel) -> LoraConfig:
    configs: Any = model.peft_config  # put there by peft
    lora = configs[ADAPTER]
    assert isinstance(lora, LoraConfig)
    return lora


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    return (
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    )


def _targets(model: PreTrainedModel, wanted: str) -> list[str]:
    """Return names of the layers that `model.lora_targets` means; never the output
    head.
    """
    head = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]
    if wanted == "all-linear":
        return linear
    targets: set[str] = set()
    for ending in (part.strip() for part in wanted.split(",")):
        matching = {n for n in linear if n == ending or n.endswith(f".{ending}")}
        if not ending or not matching:
            endings = sorted({name.rpartition(".")[2] for name in linear})
            raise ValueError(
                f'model.lora_targets names "{ending}", but no layer that supports '
                f"adapters ends with it. Choose from {', '.join(endings)}."
            )
        targets |= matching
    return sorted(targets)


def _shapes(weights: dict[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}
