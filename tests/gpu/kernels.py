"""The attention kernel on a GPU: see check.py."""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from unittest import mock

import torch
from torch.nn import functional

from tests.gpu.setup import Failed, Setup, Skip, timed
from tests.trainer.varlen import reference
from trainer.model import attention as kernel
from trainer.model.attention import (
    Attention,
    BlockAttention,
    make_attention,
    takes_keys_used,
)

HEADS = ((12, 2, 128), (14, 2, 64), (16, 16, 64), (8, 4, 256))  # with keys, size
TIMED = ((32, 512), (8, 2048), (4, 4096), (2, 8192))  # rows of so many tokens
ROOM = 512  # places of a row while it is sampled


def attention(setup: Setup) -> None:
    """One kernel for all sequences against SDPA in blocks: values, gradients, time.

    On a CPU plain operations take the kernel's place.
    """
    if setup.device == "cuda":
        if importlib.util.find_spec("torch.nn.attention.varlen") is None:
            raise Skip("this torch has no varlen_attn")
        _attention(setup)
        return
    with mock.patch.object(kernel, "varlen_attention", reference):
        _attention(setup)


def _attention(setup: Setup) -> None:
    figures, worst = setup.figures, {"value": 0.0, "gradient": 0.0}
    for heads in HEADS:
        for window in (None, 100):
            gaps = attention_gaps(setup, heads, window)
            worst = {name: max(worst[name], gap) for name, gap in gaps.items()}
    figures |= {f"{name} off": f"{gap:.2g}" for name, gap in worst.items()}
    for rows, new in TIMED[: setup.size(len(TIMED), 0)]:
        owners = tuple(place // 8 for place in range(rows))
        case = (256,) * (owners[-1] + 1), (new,) * rows, owners
        times = {}
        for is_varlen in (True, False):
            attend, inputs = attention_case(setup, *case, HEADS[0], is_varlen=is_varlen)
            once = functools.partial(attend_and_back, attend, inputs, None)
            once()
            _, seconds = timed(setup, lambda work=once: [work() for _ in range(5)])
            times[is_varlen] = 1000 * seconds / 5
        figures[f"{rows} × {new} ms"] = f"{times[True]:.2f} (blocks {times[False]:.2f})"
    if not takes_keys_used():
        figures["a token"] = "this torch's kernel cannot leave places out"
    else:
        worst["a token"] = max(token_gap(setup, heads) for heads in HEADS)
        figures["a token off"] = f"{worst['a token']:.2g}"
        figures |= token_times(setup)
    gaps = {"gradient": 2e-2, "value": 1e-2, "a token": 1e-2}
    if not all(gap <= gaps[name] for name, gap in worst.items()):
        raise Failed("the kernel is further from float32 than rounding")


def attention_case(
    setup: Setup,
    prompts: Sequence[int],
    completions: Sequence[int],
    owners: Sequence[int],
    heads: tuple[int, int, int],
    *,
    is_varlen: bool,
) -> tuple[Attention, list[torch.Tensor]]:
    device, dtype = torch.device(setup.device), setup.dtype
    torch.manual_seed(0)
    count, (num_queries, num_keys, size) = sum(prompts) + sum(completions), heads
    inputs = [
        torch.randn(count, each, size, device=device, dtype=dtype, requires_grad=True)
        for each in (num_queries, num_keys, num_keys)
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
    setup: Setup, heads: tuple[int, int, int], window: int | None
) -> dict[str, float]:
    """How far the kernel is from blocks in float32, by the size of what is compared."""
    case = (200, 60, 1), (300, 299, 64, 5, 1, 0), (0, 1, 1, 2, 0, 1), heads
    attend, inputs = attention_case(setup, *case, is_varlen=True)
    blocks, _ = attention_case(setup, *case, is_varlen=False)
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
    gaps = [relative_gap(*pair) for pair in zip(found, expected, strict=True)]
    return {"value": gaps[0], "gradient": max(gaps[1:])}


def relative_gap(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.float() - exact).norm() / exact.norm()).item()


# --- a token of each row, whose keys have places to come


@dataclasses.dataclass(frozen=True)
class Token:
    """Queries of one token of each row, and keys of its written places, on the left
    of which some are padding."""

    queries: torch.Tensor  # [rows, heads, d]
    held: tuple[torch.Tensor, torch.Tensor]  # keys, values: [rows, room, heads, d]
    first: torch.Tensor  # int32 [rows + 1], where each row's places begin
    used: torch.Tensor  # int32 [rows]
    bias: torch.Tensor  # [rows, 1, 1, room]

    @classmethod
    def make(cls, setup: Setup, rows: int, heads: tuple[int, int, int]) -> "Token":
        torch.manual_seed(0)
        device, (num_queries, num_keys, size) = setup.device, heads
        options = {"device": device, "dtype": setup.dtype}
        padded = torch.randint(0, ROOM // 8, (rows,), device=device)
        end = torch.randint(ROOM // 2, ROOM, (rows,), device=device)
        places = torch.arange(ROOM, device=device)
        sees = (places >= padded[:, None]) & (places < end[:, None])
        return cls(
            queries=torch.randn(rows, num_queries, size, **options),
            held=(
                torch.randn(rows, ROOM, num_keys, size, **options),
                torch.randn(rows, ROOM, num_keys, size, **options),
            ),
            first=(
                torch.arange(rows + 1, device=device) * ROOM
                + functional.pad(padded, (0, 1))
            ).int(),
            used=(end - padded).int(),
            bias=torch.where(sees, 0.0, -torch.inf)[:, None, None].to(setup.dtype),
        )

    def by_kernel(self) -> torch.Tensor:
        keys, values = (each.flatten(0, 1) for each in self.held)
        rows = torch.arange(len(self.first), device=keys.device, dtype=torch.int32)
        scale = self.queries.shape[-1] ** -0.5
        places = rows, self.first, 1, ROOM
        return kernel.varlen_attention(
            self.queries, keys, values, *places, scale=scale, keys_used=self.used
        )

    def by_two_kernels(self) -> torch.Tensor:
        """The first half of the places apart from the others, and then joined."""
        rows, num_queries, size = self.queries.shape
        keys, values = (each.flatten(0, 1) for each in self.held)
        sharing = num_queries // keys.shape[1]
        queries = self.queries.unflatten(1, (-1, sharing)).transpose(1, 2).flatten(0, 1)
        ends = torch.arange(rows + 1, device=keys.device, dtype=torch.int32) * sharing
        half = self.used // 2
        sums = []
        for begins, used in (
            (self.first, half),
            (self.first + functional.pad(half, (0, 1)), self.used - half),
        ):
            places = ends, begins.int(), sharing, ROOM
            sums += kernel.attend_to_all(
                queries, keys, values, *places, scale=size**-0.5, keys_used=used
            )
        found = kernel.joined(*sums)
        return found.unflatten(0, (rows, -1)).transpose(1, 2).flatten(1, 2)

    def by_bias(self, dtype: torch.dtype) -> torch.Tensor:
        keys, values = (each.transpose(1, 2).to(dtype) for each in self.held)
        rows, heads, size = self.queries.shape
        # heads that share keys stand where a longer text's queries would
        queries = self.queries.view(rows, keys.shape[1], -1, size).to(dtype)
        found = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=self.bias.to(dtype), scale=size**-0.5
        )
        return found.reshape(rows, heads, size)


def token_gap(setup: Setup, heads: tuple[int, int, int]) -> float:
    token = Token.make(setup, setup.size(64, 4), heads)
    exact = token.by_bias(torch.float32)
    gap = relative_gap(token.by_kernel(), exact)
    if setup.device == "cpu":  # where plain operations give no sums
        return gap
    return max(gap, relative_gap(token.by_two_kernels(), exact))


def token_times(setup: Setup) -> dict[str, str]:
    """Of a layer in the sizes of Qwen2.5-0.5B."""
    rows = setup.size(512, 4)
    token, times = Token.make(setup, rows, (14, 2, 64)), []
    for work in (token.by_kernel, lambda: token.by_bias(setup.dtype)):
        work()
        _, seconds = timed(setup, lambda once=work: [once() for _ in range(20)])
        times.append(1000 * seconds / 20)
    name = f"a token of {rows} rows ms"
    return {name: f"{times[0]:.3f} (SDPA with a bias {times[1]:.3f})"}
