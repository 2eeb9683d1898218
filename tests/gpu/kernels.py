"""The attention kernel on a GPU: see check.py."""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence

import torch

from tests.gpu.setup import Failed, Setup, Skip, timed
from trainer.model.attention import (
    Attention,
    BlockAttention,
    make_attention,
)


def attention(setup: Setup) -> None:
    """One kernel for all sequences against SDPA in blocks: values, gradients, time."""
    if not varlen_is_there():
        raise Skip("this torch has no varlen_attn")
    worst, figures = {"value": 0.0, "gradient": 0.0}, setup.figures
    for heads, kv_heads, size in ((12, 2, 128), (14, 2, 64), (16, 16, 64)):
        for window in (None, 100):
            prompts, completions = (200, 60, 1), (300, 299, 64, 5, 1, 0)
            gaps = attention_gaps(
                prompts, completions, (0, 1, 1, 2, 0, 1), heads, kv_heads, size, window
            )
            worst = {name: max(worst[name], gap) for name, gap in gaps.items()}
    figures |= {f"{name} off": f"{gap:.2g}" for name, gap in worst.items()}
    for rows, new in ((32, 512), (8, 2048), (4, 4096), (2, 8192)):
        owners = tuple(place // 8 for place in range(rows))
        prompts = (256,) * (owners[-1] + 1)
        times = {}
        for is_varlen in (True, False):
            attend, inputs = attention_case(
                prompts, (new,) * rows, owners, 12, 2, 128, is_varlen=is_varlen
            )
            once = functools.partial(attend_and_back, attend, inputs, None)
            once()
            _, seconds = timed(setup, lambda work=once: [work() for _ in range(5)])
            times[is_varlen] = 1000 * seconds / 5
        figures[f"{rows} × {new} ms"] = f"{times[True]:.2f} (blocks {times[False]:.2f})"
    if not (worst["value"] <= 1e-2 and worst["gradient"] <= 2e-2):
        raise Failed("the kernel is further from float32 than rounding")


def varlen_is_there() -> bool:
    return importlib.util.find_spec("torch.nn.attention.varlen") is not None


def attention_case(
    prompts: Sequence[int],
    completions: Sequence[int],
    owners: Sequence[int],
    heads: int,
    kv_heads: int,
    size: int,
    *,
    is_varlen: bool,
) -> tuple[Attention, list[torch.Tensor]]:
    device, dtype = torch.device("cuda"), torch.bfloat16
    torch.manual_seed(0)
    count = sum(prompts) + sum(completions)
    inputs = [
        torch.randn(count, each, size, device=device, dtype=dtype, requires_grad=True)
        for each in (heads, kv_heads, kv_heads)
    ]
    attend = make_attention(
        prompts, completions, owners, device=device, dtype=dtype, is_varlen=is_varlen
    )
    return attend, inputs


def attend_and_back(
    attend: Attention, inputs: Sequence[torch.Tensor], window: int | None
) -> tuple[torch.Tensor, ...]:
    found = attend(*inputs, scale=inputs[0].shape[-1] ** -0.5, window=window)
    upstream = upstream_of(found.shape, found.device, found.dtype)
    return found.detach(), *torch.autograd.grad(found, inputs, upstream)


@functools.cache
def upstream_of(
    shape: torch.Size, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """A gradient that bfloat16 holds exactly."""
    values = torch.arange(shape.numel(), device=device) % 7 - 3
    return values.view(shape).to(dtype)


def attention_gaps(
    prompts: Sequence[int],
    completions: Sequence[int],
    owners: Sequence[int],
    heads: int,
    kv_heads: int,
    size: int,
    window: int | None,
) -> dict[str, float]:
    """How far the kernel is from blocks in float32, by the size of what is compared."""
    case = prompts, completions, owners, heads, kv_heads, size
    attend, inputs = attention_case(*case, is_varlen=True)
    blocks, _ = attention_case(*case, is_varlen=False)
    exact = [each.detach().float().requires_grad_() for each in inputs]
    blocks = BlockAttention(
        tuple(
            dataclasses.replace(
                block,
                owners=None if block.owners is None else block.owners.float(),
                bias=None if block.bias is None else block.bias.float(),
            )
            for block in blocks.blocks
        )
    )
    found = attend_and_back(attend, inputs, window)
    expected = attend_and_back(blocks, exact, window)
    gaps = [
        ((one.float() - other).norm() / other.norm()).item()
        for one, other in zip(found, expected, strict=True)
    ]
    return {"value": gaps[0], "gradient": max(gaps[1:])}
