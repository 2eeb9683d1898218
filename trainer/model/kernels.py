"""Forward passes over a packed row: our own, and transformers' with our attention.

On small and medium models the parts of a layer are bound by memory bandwidth; each
function keeps only its inputs and reads them once or twice.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import cache, partial
from types import MethodType, ModuleType
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.llama import modeling_llama

from trainer.model.logprobs import compile_for_all_sizes
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
    """Let norms, rotations and gated MLPs of a model take fewer kernels and keep less.

    Rotations are functions of the model's own file, so all models of its kind get it.
    """
    for source in _sources_of_rotations(model):
        vars(source)[_ROTATION] = rotate_both
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
    for source in _sources_of_rotations(model):
        vars(source)[_ROTATION] = _LLAMAS[_ROTATION]
    for module in model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) in (_norm, _mlp):
            del module.forward


def rotate_both(
    queries: torch.Tensor,
    keys: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what Llama's `apply_rotary_pos_emb` does: `rotate` with cos and sin [B, T, d],
    to which a dimension for the heads is added.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), signed(sin).unsqueeze(unsqueeze_dim)
    return rotate(queries, cos, sin), rotate(keys, cos, sin)


_ROTATION = "apply_rotary_pos_emb"  # as transformers' files name it
_LLAMAS = {name: getattr(modeling_llama, name) for name in (_ROTATION, "rotate_half")}


def _sources_of_rotations(model: torch.nn.Module) -> list[ModuleType]:
    """Return the files of a model's layers that rotate as Llama's does.

    Models copy its functions, and some change them, so instructions are compared.
    """
    names = {type(module).__module__ for module in model.modules()}
    sources = [sys.modules[name] for name in sorted(names)]
    expected = [_instructions(function) for function in _LLAMAS.values()]
    return [
        source
        for source in sources
        if getattr(source, _ROTATION, None) is rotate_both
        or [_instructions(getattr(source, name, None)) for name in _LLAMAS] == expected
    ]


def _instructions(function: Any) -> object:
    """Compare equal only for functions that do the same; nothing equals what has no
    code to be seen.
    """
    code = getattr(inspect.unwrap(function) if function else None, "__code__", None)
    if code is None:
        return object()
    return code.co_code, code.co_names, code.co_consts[1:]


def _norm(self: Any, inputs: torch.Tensor) -> torch.Tensor:
    weight = self.weight
    return functional.rms_norm(inputs, weight.shape, weight, self.variance_epsilon)


def _mlp(self: Any, inputs: torch.Tensor) -> torch.Tensor:
    inner = swiglu(self.gate_proj(inputs), self.up_proj(inputs))
    output: torch.Tensor = self.down_proj(inner)
    return output


def use_compiled_layers(layers: Iterable[torch.nn.Module]) -> None:
    """Let decoder layers go over a packed row by compiled code, which they share.

    Attention stays as it is: the sequences in it differ from row to row, and each
    number of them would be compiled again.
    """
    AttentionInterface.register(_NAME, torch.compiler.disable(_attend))
    for layer in layers:
        layer.forward = MethodType(_compiled_layer, layer)


def use_plain_layers(layers: Iterable[torch.nn.Module]) -> None:
    """Undo `use_compiled_layers`."""
    for layer in layers:
        del layer.forward


def _compiled_layer(self: Any, hidden: torch.Tensor, **options: Any) -> torch.Tensor:
    through = partial(type(self).forward, self, **options)
    if options.get("layout") is not None:  # a prefill has a cache, which changes
        work = _compiled_forward(inspect.unwrap(type(self).forward))
        through = partial(work, self, **options)
        if self.gradient_checkpointing and self.training:
            # which transformers does around the function that is compiled
            through = partial(self._gradient_checkpointing_func, through)
    output: torch.Tensor = through(hidden)
    return output


_compiled_forward = cache(compile_for_all_sizes)


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
        *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
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
