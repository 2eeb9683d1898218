"""The forward pass of models built like Llama over a micro-batch without padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.model.kernels import rms_norm, rotate, signed, swiglu
from trainer.model.layout import Layout

# A decoder layer's own way through, where it has one.
FLAT_LAYER = "flat_layer"


def flat_hidden(body: Any, layout: Layout, *, recomputes: bool = False) -> torch.Tensor:
    """Last hidden states [M, H] where the scored tokens of a layout are predicted.

    What the body of a model that `is_built_like_llama` computes for each sequence, with
    a gradient to its weights. Each prompt is computed once for all its completions.

    Args:
        body: of the model.
        layout: of the tokens.
        recomputes: whether the backward pass computes a layer's activations anew from
            its input, which alone is kept (arXiv:1604.06174).
    """
    recomputes = recomputes and torch.is_grad_enabled()
    hidden = functional.embedding(layout.input_ids, body.embed_tokens.weight)
    cos, sin = body.rotary_emb(hidden, layout.positions[None])
    cos, sin = cos[0, :, None], signed(sin)[0, :, None]
    last = len(body.layers) - 1
    for place, layer in enumerate(body.layers):
        # a layer whose weights are elsewhere gathers them around this
        through = getattr(layer, FLAT_LAYER, None) or partial(flat_layer, layer)
        if recomputes:
            through = partial(
                checkpoint, through, use_reentrant=False, preserve_rng_state=False
            )
        hidden = through(hidden, cos, sin, layout, is_last=place == last)
    # not index_select, whose backward pass goes row by row
    hidden = functional.embedding(layout.places, hidden)
    return _normed(body.norm, hidden)


def flat_layer(
    layer: Any,
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: Layout,
    *,
    is_last: bool = False,
) -> torch.Tensor:
    """Hidden states [N, H] behind a decoder layer.

    Behind the last one only those that something is predicted from: what it makes of
    a prompt's other tokens nobody reads.
    """
    hidden = _attention(layer, hidden, cos, sin, layout)
    return _mlp(layer, layout.only_asked(hidden) if is_last else hidden)


def _attention(
    layer: Any,
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: Layout,
) -> torch.Tensor:
    attention = layer.self_attn
    heads = (len(hidden), -1, attention.head_dim)
    inputs = _normed(layer.input_layernorm, hidden)
    queries = attention.q_proj(inputs).view(heads)
    keys = attention.k_proj(inputs).view(heads)
    values = attention.v_proj(inputs).view(heads)
    if hasattr(attention, "q_norm"):
        queries = _normed(attention.q_norm, queries)
        keys = _normed(attention.k_norm, keys)
    queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
    attended = layout.attention(queries, keys, values, scale=attention.scaling)
    found: torch.Tensor = hidden + attention.o_proj(attended)
    return found


def _mlp(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    inputs, mlp = _normed(layer.post_attention_layernorm, hidden), layer.mlp
    inner = swiglu(mlp.gate_proj(inputs), mlp.up_proj(inputs))
    found: torch.Tensor = hidden + mlp.down_proj(inner)
    return found


def _normed(norm: Any, inputs: torch.Tensor) -> torch.Tensor:
    return rms_norm(inputs, norm.weight, float(norm.variance_epsilon))
