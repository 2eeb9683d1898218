"""Which models are built like Llama, so that their arithmetic is known here."""

from __future__ import annotations

from typing import Any

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
