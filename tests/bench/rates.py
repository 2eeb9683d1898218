"""How fast this machine multiplies matrices and reads memory, measured.

A limit is what the machine can do at best, so of several rounds the fastest counts.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tests.bench.limits import Rates
from trainer.sizes.model_sizes import Dimensions

# Numbers in logits at a time, as `trainer.model.logprobs` has it.
_MAX_LOGITS = 16 * 2**20
_ROUNDS, _ROUND_SECONDS = 5, 0.05


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    """In FLOP and bytes a second.

    `matrix` and `read` are of a large matrix, and of memory far beyond all caches. The
    others are of the same work in the sizes that a run of a model really has.
    """

    matrix: float
    read: float
    training: float  # matrix products of a micro-batch, backward too
    decoding: float  # matrix products of one more token of each completion
    reading: float  # of as many bytes as a token position reads, which caches may hold

    @property
    def limit(self) -> Rates:
        """The machine's own, for sampling and training.

        A small model is read from a cache, faster than memory is.
        """
        return Rates(matrix=self.matrix, read=max(self.read, self.reading))

    @property
    def in_training(self) -> Rates:
        return Rates(matrix=self.training, read=self.limit.read)

    @property
    def in_decoding(self) -> Rates:
        return Rates(matrix=self.decoding, read=self.limit.read)


def measure_rates(
    sizes: Dimensions,
    *,
    device: str,
    dtype: str,
    rows: int,
    micro_batch_tokens: int,
    position_bytes: float,
    size: int | None = None,
    memory_bytes: int | None = None,
) -> MachineRates:
    """All of `MachineRates`, in a few seconds.

    Args:
        sizes: of the model.
        device: cpu or cuda.
        dtype: of weights and activations.
        rows: completions sampled at once.
        micro_batch_tokens: tokens trained on at once.
        position_bytes: read at each token position of sampling.
        size: side of the large matrix.
        memory_bytes: memory far beyond all caches.
    """
    on_gpu = device == "cuda"
    kind = getattr(torch, dtype)
    size = size or (8_192 if on_gpu else 2_048)
    memory_bytes = memory_bytes or (4 * 2**30 if on_gpu else 2**29)
    square = [_Product(rows=size, inputs=size, outputs=size)]
    return MachineRates(
        matrix=_product_rate(square, device=device, dtype=kind),
        read=read_rate(memory_bytes, device=device),
        training=_product_rate(
            list(_products(sizes, tokens=micro_batch_tokens)),
            device=device,
            dtype=kind,
            backward=True,
        ),
        decoding=_product_rate(
            list(_products(sizes, tokens=rows)), device=device, dtype=kind
        ),
        reading=read_rate(round(position_bytes), device=device),
    )


@dataclass(frozen=True, kw_only=True)
class _Product:
    """[rows, inputs] times [inputs, outputs], so many times."""

    rows: int
    inputs: int
    outputs: int
    times: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.inputs * self.outputs


def _products(sizes: Dimensions, *, tokens: int) -> Iterator[_Product]:
    """Those of tokens through the model and its output embedding, like ones once."""
    shapes = Counter(sizes.linear_layers.values())
    for (inputs, outputs), times in shapes.items():
        times *= sizes.layers
        yield _Product(rows=tokens, inputs=inputs, outputs=outputs, times=times)
    chunk = min(tokens, max(1, _MAX_LOGITS // sizes.vocabulary))
    yield _Product(
        rows=chunk,
        inputs=sizes.hidden,
        outputs=sizes.vocabulary,
        times=tokens / chunk,
    )


def _product_rate(
    products: list[_Product],
    *,
    device: str,
    dtype: torch.dtype,
    backward: bool = False,
) -> float:
    flops = seconds = 0.0
    for product in products:
        passes = 3 if backward else 1
        flops += passes * product.times * product.flops
        seconds += product.times * _product_seconds(
            product, device=device, dtype=dtype, backward=backward
        )
    return flops / seconds


def _product_seconds(
    product: _Product, *, device: str, dtype: torch.dtype, backward: bool
) -> float:
    """With `backward`, the gradients of inputs and weights are computed too."""
    # not zeros, which some processors multiply faster
    inputs = torch.randn(product.rows, product.inputs, device=device).to(dtype)
    weights = torch.randn(product.outputs, product.inputs, device=device).to(dtype)
    found = torch.empty(product.rows, product.outputs, device=device, dtype=dtype)
    d_inputs, d_weights = torch.empty_like(inputs), torch.empty_like(weights)

    def multiply() -> None:
        torch.mm(inputs, weights.T, out=found)
        if backward:
            torch.mm(found, weights, out=d_inputs)
            torch.mm(found.T, inputs, out=d_weights)

    return _fastest(multiply, device=device)


def read_rate(num_bytes: int, *, device: str) -> float:
    """Bytes a second: of a sum that reads them, or a copy that also writes them."""
    values = torch.ones(max(1, num_bytes // 4), device=device)
    size = values.numel() * values.itemsize
    summing = size / _fastest(values.sum, device=device)
    half = values[: max(1, values.numel() // 2)]
    target = torch.empty_like(half)
    copied = 2 * half.numel() * half.itemsize
    copying = copied / _fastest(lambda: target.copy_(half), device=device)
    return max(summing, copying)


def _fastest(call: Callable[[], object], *, device: str) -> float:
    """Seconds of a call, in the fastest of some rounds of many calls."""

    def seconds_of(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds_of(1)  # chooses its kernels
    times = 1
    while (taken := seconds_of(times)) < _ROUND_SECONDS:
        times = max(2 * times, int(times * _ROUND_SECONDS / max(taken, 1e-6)))
    return min(taken, *(seconds_of(times) for _ in range(_ROUNDS - 1))) / times
