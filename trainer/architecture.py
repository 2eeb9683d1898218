"""Which models are built like Llama, so that their arithmetic is known here."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Positions of the other kinds depend on how long the text has become.
_ROPES = ("default", "linear", "llama3")


def is_built_like_llama(model: PreTrainedModel) -> bool:
    """Whether each layer is known: norm, attention to all tokens, norm, gated MLP.

    Nothing may have been put into its layers, such as adapters or 4-bit weights.
    """
    if type(model) not in _KINDS:
        return False
    config: Any = model.config
    maps = {type(m) for m in model.base_model.modules() if hasattr(m, "in_features")}
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = ["sliding_attention" if has_window else "full_attention"]
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.hidden_act == "silu"
        and maps == {torch.nn.Linear}
        and set(kinds) == {"full_attention"}
        and rope.get("rope_type", "default") in _ROPES
    )
