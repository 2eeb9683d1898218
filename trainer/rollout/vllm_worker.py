"""What vLLM's workers can do besides: take weights, and adapters, from memory.

A worker is one rank of the tensor parallelism. It is in the trainer's process where
there is one, and in a process of its own where there are several; then it is sent
everything, and keeps its part of each weight.
"""

from __future__ import annotations

import importlib
import signal
from contextlib import suppress
from typing import Any

import torch

from trainer.model.loading import AdapterWeights
from trainer.stopping import die_with_parent

LORA_ID = 1


class WorkerExtension:
    """vLLM makes this a base of its worker's class, which has what is used here.

    Each method is called in all workers at once, by its name.
    """

    def follow_parent(self: Any) -> None:
        """Leave signals to the process that started this one, and end with it.

        Ctrl-C and service managers signal all processes of a group; a run that is
        asked to stop samples on to the end of its step.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        die_with_parent()

    def begin_weights(self: Any) -> None:
        """Get ready for all of the model's weights, which come in parts.

        vLLM's own reloading, which lays weights out for its kernels again, layer by
        layer as they are complete.
        """
        with _config_of(self):
            _reloading().initialize_layerwise_reload(self.get_model())
        self._names_taken: set[str] | None = set()

    def take_weights(self: Any, weights: list[tuple[str, torch.Tensor]]) -> None:
        with _config_of(self):
            taken = self.get_model().load_weights(weights)
        if taken is None or self._names_taken is None:
            self._names_taken = None  # some kinds of models do not tell
        else:
            self._names_taken |= taken

    def finish_weights(self: Any) -> list[str]:
        """Sample with them from now on; the names of those that did not come."""
        model = self.get_model()
        with _config_of(self):
            _reloading().finalize_layerwise_reload(model, self.model_config)
        # Lay out embeddings again, where a CPU's kernels have a copy of their own.
        # Reloading does so for all layers but an output head that is tied to the
        # input's embedding: its weights are never loaded by its own name, so its copy
        # stays old.
        layer: Any
        for layer in model.modules():
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)
        self.model_runner.reset_lora_state()
        if self._names_taken is None:
            return []
        names = {n.replace(".base_layer.", ".") for n, _ in model.named_parameters()}
        return sorted(names - self._names_taken)

    def adapter_layers(self: Any) -> dict[str, list[str]]:
        """Return layers that may have adapters, each with what vLLM packed into it."""
        manager = self.model_runner.lora_manager._adapter_manager
        return {
            name: list(manager.packed_modules.get(name, ())) for name in manager.modules
        }

    def put_adapters(self: Any, adapters: AdapterWeights) -> None:
        """Sample with these beside the weights, under LORA_ID."""
        model = importlib.import_module("vllm.lora.lora_model").LoRAModel
        helper = importlib.import_module("vllm.lora.peft_helper").PEFTHelper
        manager = self.model_runner.lora_manager._adapter_manager
        lora = model.from_lora_tensors(
            LORA_ID,
            # copies: vLLM multiplies alpha into what it is given
            {f"base_model.model.{n}": t.detach().clone() for n, t in adapters.tensors},
            helper(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=[]),
            device="cpu",
            dtype=self.model_runner.lora_config.lora_dtype,
        )
        with suppress(KeyError):
            manager.remove_adapter(LORA_ID)
        manager.add_adapter(lora)
        manager.activate_adapter(LORA_ID)


def _config_of(worker: Any) -> Any:
    config = importlib.import_module("vllm.config")
    return config.set_current_vllm_config(worker.vllm_config)


def _reloading() -> Any:
    return importlib.import_module("vllm.model_executor.model_loader.reload")
