"""transformers' own forward pass over a packed row, through an attention of ours."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.model.packing import Layout

_NAME = "cohort"  # of the attention, for transformers
_NO_MASK = (1, 1, 1, 1)  # shape of the mask of a packed row
# Options of a layer that a packed row's attention heeds or that mean nothing to it.
_KNOWN = {"dropout", "position_ids", "sliding_window", "use_cache"}


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' SDPA, or a packed row's attention where a layout comes along.

    Raises:
        ValueError: a layer has a mask of its own, or asks for what a row has not, such
            as bounded logits or sinks.
    """
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    if attention_mask is None or attention_mask.shape != _NO_MASK:
        raise ValueError("a layer has a mask of its own")
    for option, setting in options.items():
        if option not in _KNOWN and setting is not None and setting is not False:
            raise ValueError(f"attention with {option} does not support packed rows")
    attended = layout.attention(
        *(each[0].transpose(0, 1) for each in (query, key, value)),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=options.get("sliding_window"),
    )
    return attended.view(1, len(attended), query.shape[1], value.shape[-1]), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


def packed_hidden(model: Any, layout: Layout) -> torch.Tensor:
    """Return last hidden states [M, H] where the scored tokens of a layout are
    predicted.

    transformers' own pass over the row, by a model that was given to `use_attention`.
    """
    hidden = model.base_model(
        input_ids=layout.input_ids[None],
        position_ids=layout.positions[None],
        # a mask of four dimensions is taken as it is: none is made, and none is read
        attention_mask=layout.positions.new_ones(_NO_MASK, dtype=torch.bool),
        use_cache=False,
        layout=layout,
    )[0][0]
    return layout.scored_rows_cuda.of(layout.take_query_rows(hidden))


def use_attention(model: PreTrainedModel, name: str = _NAME) -> str:
    """Let a model attend as here, or as a name says; the name of how it did before.

    Without a layout this is transformers' SDPA.
    """
    before: str = model.config._attn_implementation
    model.config._attn_implementation = name
    return before


def num_windows(model: PreTrainedModel) -> int | None:
    """Return layers that see a window; None where some see the text in another way."""
    config: Any = model.config.get_text_config()
    has_window = getattr(config, "sliding_window", None) is not None
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds is None:
        return int(config.num_hidden_layers) if has_window else 0
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return kinds.count("sliding_attention")
