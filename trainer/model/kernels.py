"""Parts of a decoder layer with a memory-efficient backward pass.

On small and medium models these operations are bound by memory bandwidth; each function
keeps only its inputs and reads them once or twice.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.model.packing import Layout


def rms_norm(
    inputs: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """x / √(mean(x²) + ε) · w over the last dimension (arXiv:1910.07467).

    Computed in float32, or what is wider; the quotient is in the inputs' own format
    before it meets the weight, as transformers has it.
    """
    normalized: torch.Tensor = _RMSNorm.apply(inputs, weight, epsilon)  # type: ignore[no-untyped-call]  # torch's
    return normalized


def rotate(inputs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (arXiv:2104.09864) with halves as pairs.

    x · cos + swap(x) · sin, where swap exchanges the halves of the last dimension.

    Args:
        inputs: [N, heads, d].
        cos: [N, 1, d].
        sin: [N, 1, d], its first half negative: `signed` makes it so.
    """
    rotated: torch.Tensor = _Rotation.apply(inputs, cos, sin)  # type: ignore[no-untyped-call]  # torch's
    return rotated


def signed(sin: torch.Tensor) -> torch.Tensor:
    """Return the sine as `rotate` takes it: with the sign that a rotation gives one
    half.
    """
    half = sin.shape[-1] // 2
    return torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up (arXiv:2002.05202)."""
    activated: torch.Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]  # torch's
    return activated


def normed(
    inputs: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm` without a gradient, and 1 / √(mean(x²) + ε)."""
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    scale = wide.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()
    return (wide * scale).to(inputs.dtype).mul_(weight), scale


def rotated(inputs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`rotate` without a gradient."""
    half = inputs.shape[-1] // 2
    return torch.addcmul(inputs * cos, inputs.roll(half, dims=-1), sin)


class _RMSNorm(torch.autograd.Function):
    """With y = x·r·w, r = (mean(x²) + ε)^-½ and g = dy·w: dx = r·g - x·r³·mean(g·x)."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        normalized, scale = normed(inputs, weight, epsilon)
        ctx.save_for_backward(inputs, weight, scale)
        return normalized

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight, scale = ctx.saved_tensors
        wide = inputs.to(scale.dtype)
        normed = wide * scale
        grad = grad.to(scale.dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            size = weight.numel()
            d_weight = (grad * normed).view(-1, size).sum(dim=0).to(weight.dtype)
        grad = grad * weight
        share = torch.linalg.vecdot(grad, normed).div_(weight.numel())[..., None]
        d_inputs = grad.addcmul_(normed, share, value=-1.0).mul_(scale)
        return d_inputs.to(inputs.dtype), d_weight, None


class _Rotation(torch.autograd.Function):
    """dx = dy · cos + swap(dy · sin): to swap is its own inverse."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(inputs, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        return (grad * sin).roll(half, dims=-1).addcmul_(grad, cos), None, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        d_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return d_gate, functional.silu(gate).mul_(grad)


_SILU = ("SiLU", "SiLUActivation")  # torch's and transformers'


def use_fused_kernels(model: torch.nn.Module) -> None:
    """Let the norms and gated MLPs of a model take fewer kernels and keep less."""
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_norm, module)
        elif type(getattr(module, "act_fn", None)).__name__ in _SILU and all(
            hasattr(module, part) for part in ("gate_proj", "up_proj", "down_proj")
        ):
            module.forward = MethodType(_mlp, module)


def use_plain_kernels(model: torch.nn.Module) -> None:
    """Undo `use_fused_kernels`."""
    for module in model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) in (_norm, _mlp):
            del module.forward


def _norm(self: Any, inputs: torch.Tensor) -> torch.Tensor:
    weight = self.weight
    return functional.rms_norm(inputs, weight.shape, weight, self.variance_epsilon)


def _mlp(self: Any, inputs: torch.Tensor) -> torch.Tensor:
    inner = swiglu(self.gate_proj(inputs), self.up_proj(inputs))
    output: torch.Tensor = self.down_proj(inner)
    return output


# A decoder layer's own way through, where it has one.
FLAT_LAYER = "flat_layer"


def flat_hidden(body: Any, layout: Layout, *, recomputes: bool = False) -> torch.Tensor:
    """Return last hidden states [M, H] where the scored tokens of a layout are
    predicted.

    What the body of a model that `is_built_like_llama` computes for each sequence, with
    a gradient to its weights. Each prompt is computed once for all its completions.

    Args:
        body: of the model.
        layout: of the tokens.
        recomputes: whether the backward pass computes a layer's activations again from
            its input, which alone is kept (arXiv:1604.06174).
    """
    recomputes = recomputes and torch.is_grad_enabled()
    hidden = functional.embedding(layout.input_ids, body.embed_tokens.weight)
    cos, sin = body.rotary_emb(hidden, layout.positions[None])
    cos, sin = cos[0, :, None], signed(sin)[0, :, None]
    last = len(body.layers) - 1
    for index, layer in enumerate(body.layers):
        # a layer whose weights are elsewhere gathers them around this
        through = getattr(layer, FLAT_LAYER, None) or partial(flat_layer, layer)
        if recomputes:
            through = partial(
                checkpoint, through, use_reentrant=False, preserve_rng_state=False
            )
        hidden = through(hidden, cos, sin, layout, is_last=index == last)
    # not index_select, whose backward pass goes row by row
    hidden = functional.embedding(layout.scored_rows, hidden)
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
    a prompt's other tokens no one reads.
    """
    hidden = _attention(layer, hidden, cos, sin, layout)
    return _flat_mlp(layer, layout.take_query_rows(hidden) if is_last else hidden)


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
    output: torch.Tensor = hidden + attention.o_proj(attended)
    return output


def _flat_mlp(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    inputs, mlp = _normed(layer.post_attention_layernorm, hidden), layer.mlp
    inner = swiglu(mlp.gate_proj(inputs), mlp.up_proj(inputs))
    output: torch.Tensor = hidden + mlp.down_proj(inner)
    return output


def _normed(norm: Any, inputs: torch.Tensor) -> torch.Tensor:
    return rms_norm(inputs, norm.weight, float(norm.variance_epsilon))
