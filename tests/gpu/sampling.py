"""Sampling on a GPU, each of its ways and parts by itself: see check.py."""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.gpu.setup import (
    Failed,
    Setup,
    differences,
    random_policy,
    requests_of,
    rounding,
    same_share,
    timed,
    wait,
)
from trainer.model.policy import Policy
from trainer.rollout import builtin, decoder, llama
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import DecodingMethod, draw_next, make_decoder
from trainer.rollout.engine import Request, SamplingParams, Slowed
from trainer.types import Rollout

LEAST_RATE = 72_000  # tokens/s that an H100 had before all of `UNDONE`
FAST: tuple[DecodingMethod, ...] = ("shared", "flash", "graph", "lean")
# Kernels by what their names, or those of torch's operations, have in them.
CLASSES = {
    "attention": r"flash|fmha|attention|mha_|sdpa",
    "draw": r"softmax|scan|cumsum|searchsorted|triton|gather|sort|topk",
    "products": r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|\b(add)?mm\b|linear",
    "norms": r"norm|reduce|mean|rsqrt",
    "copies": r"cat|copy|index|memcpy|memset|roll|fill",
}


def sampling(setup: Setup) -> None:
    """Tokens a second, and how far log-probs of sampling are from recomputed ones.

    Each change that made a token faster is undone by itself, and a token of the fast
    ways goes through the profiler.
    """
    policy, figures = random_policy(setup), setup.figures
    count, group, new = setup.size(64, 4), setup.size(8, 3), setup.size(256, 24)
    requests = requests_of(policy, count, group)
    reported: list[Slowed] = []
    params = SamplingParams(max_new_tokens=new, temperature=1.0)
    engine = partial(engine_of, policy, reported=reported)

    own = engine(count * group, FAST)
    first, way = replace(params, max_new_tokens=4), own._ways[0]
    if way == "shared":
        way = own._way_of(builtin._Rows(requests, []))
    begun = time.monotonic()
    own.sample(requests, first)
    figures["first call s"] = round(time.monotonic() - begun, 2)
    found, seconds = timed(setup, lambda: own.sample(requests, params))
    rate = count * group * new / seconds
    figures["tokens/s"] = f"{rate:.0f} ({way})"
    noise = rounding(setup, policy, requests, found)
    figures["rounding"] = f"{noise:.2g} nats"
    compare(setup, policy, requests, found, "", noise)
    again = own.sample(requests, params)
    figures["same tokens again"] = f"{same_share(found, again):.0%}"
    for name, undo in UNDONE.items():
        ways = FAST[2:] if name == FLASH else FAST
        with undo():
            slower = engine(count * group, ways)
            slower.sample(requests, first)
            found, seconds = timed(setup, partial(slower.sample, requests, params))
        own_rate = count * group * new / seconds
        figures[f"without {name}"] = f"{own_rate:.0f} ({rate / own_rate:.2f} ×)"
        compare(setup, policy, requests, found, f" without {name}", noise)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.02)
    moved = own.sample(requests, params)
    compare(setup, policy, requests, moved, " after an update", noise)
    profile_ways(setup, policy, own._ways, requests)
    if own._ways[0] == "shared":
        share_prompts(setup, policy, reported, noise)
    few = requests[: setup.size(8, 1)]
    for way in ("lean", "plain"):
        slower = engine(64, [way])
        slower.sample(few, first)
        found, seconds = timed(setup, lambda each=slower: each.sample(few, params))
        own_rate = round(len(few) * group * new / seconds)
        figures[f"tokens/s, {len(few) * group} rows, {way}"] = own_rate
        compare(setup, policy, few, found, f" {way}", noise)
    if reported:
        raise Failed(f"a slower way was taken: {reported[0].reason}")
    is_known = setup.device == "cuda" and re.search(
        r"H[12]00", torch.cuda.get_device_name()
    )
    if is_known and not setup.tiny and rate < LEAST_RATE:
        raise Failed(f"{rate:.0f} tokens/s are fewer than {LEAST_RATE}")


def share_prompts(
    setup: Setup, policy: Policy, reported: list[Slowed], noise: float
) -> None:
    """Tokens a second of large groups of long prompts, each read once for its group."""
    requests = [
        replace(request, token_ids=request.token_ids * 12)
        for request in requests_of(policy, setup.size(32, 2), setup.size(16, 3))
    ]
    params = SamplingParams(max_new_tokens=setup.size(128, 8), temperature=1.0)
    rows = sum(len(request.seeds) for request in requests)
    rates = []
    for name, ways in ((", prompts shared", FAST), (", not shared", FAST[1:])):
        engine = engine_of(policy, rows, ways, reported=reported)
        engine.sample(requests, replace(params, max_new_tokens=4))
        found, seconds = timed(setup, partial(engine.sample, requests, params))
        rates.append(rows * params.max_new_tokens / seconds)
        setup.figures[f"tokens/s{name}"] = round(rates[-1])
        compare(setup, policy, requests[:4], found[:4], name, noise)
    setup.figures["sharing prompts"] = f"{rates[0] / rates[1]:.2f} ×"


def engine_of(
    policy: Policy,
    rows: int,
    ways: Sequence[DecodingMethod],
    *,
    reported: list[Slowed],
) -> TransformersEngine:
    """One that takes the first of these ways that this model has on this device."""
    engine = TransformersEngine(policy, max_batch_rows=rows)
    engine.on_slowed = reported.append
    engine._ways = [way for way in engine._ways if way in ways]
    return engine


# --- what was changed, as it was before


def eight_kernels_of(layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the norm of a token as separate operations."""

    def norm(hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        mean = wide.square().mean(dim=-1, keepdim=True)
        scaled: torch.Tensor = wide * (mean + layer.variance_epsilon).rsqrt()
        normed: torch.Tensor = layer.weight * scaled.to(hidden.dtype)
        return normed

    return norm


FLASH = "FlashAttention"
UNDONE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "one kernel for a norm": lambda: mock.patch.object(
        llama, "norm_of", eight_kernels_of
    ),
    "drawing by blocks": lambda: mock.patch.object(
        decoder, "is_fused", return_value=False
    ),
    FLASH: nullcontext,
    "joined products": lambda: mock.patch.object(llama, "copied_bytes", return_value=0),
}


# --- a token, kernel by kernel


def profile_ways(
    setup: Setup,
    policy: Policy,
    ways: Sequence[DecodingMethod],
    requests: Sequence[Request],
) -> None:
    """Milliseconds of a token by kernel class; on a CPU by class of operation."""
    for way in ways:
        setup.figures[f"a token, {way}, ms"] = profiled(setup, policy, way, requests)
    for name, undo in UNDONE.items():
        if name != FLASH:
            with undo():
                summary = profiled(setup, policy, ways[0], requests)
            setup.figures[f"a token without {name}, ms"] = summary


@torch.inference_mode()
def profiled(
    setup: Setup, policy: Policy, way: DecodingMethod, requests: Sequence[Request]
) -> str:
    before, count = setup.size(128, 3), setup.size(8, 2)
    activities = [ProfilerActivity.CPU]
    if setup.device == "cuda":
        activities = [ProfilerActivity.CUDA]
    with profile(activities=activities):  # set up before a graph is recorded
        pass
    tokens = tokens_of(policy, way, requests, num_tokens=before + 2 * count)
    for _ in range(before):
        next(tokens)
    _, seconds = timed(setup, lambda: [next(tokens) for _ in range(count)])
    with profile(activities=activities) as profiler:
        for _ in range(count):
            next(tokens)
        wait(setup)
    microseconds, num_kernels = Counter[str](), 0
    for row in profiler.key_averages():
        spent = row.self_cpu_time_total
        if setup.device == "cuda":
            is_kernel = row.device_type == DeviceType.CUDA
            spent = row.self_device_time_total if is_kernel else 0
        if spent > 0:
            microseconds[class_of(row.key)] += spent
            num_kernels += row.count
    parts = {name: value / count / 1000 for name, value in microseconds.most_common()}
    summary = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
    whole = 1000 * seconds / count
    return f"{whole:.2f} ({num_kernels / count:.0f} kernels: {summary})"


def class_of(kernel: str) -> str:
    for name, pattern in CLASSES.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return name
    return "others"


def tokens_of(
    policy: Policy,
    way: DecodingMethod,
    requests: Sequence[Request],
    *,
    num_tokens: int,
) -> Iterator[None]:
    """Draw a token of each row and go on with it, as an engine does, each time."""
    engine = TransformersEngine(policy, max_batch_rows=len(requests))
    params = SamplingParams(max_new_tokens=num_tokens, temperature=1.0)
    cache, hidden, padding = engine._prefill(requests)
    sizes = torch.tensor([len(request.seeds) for request in requests])
    owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    owners = owners.to(policy.device)
    hidden, positions = hidden[owners], padding.sum(dim=1)[owners]
    options = {"max_new_tokens": num_tokens, "way": way}
    own = make_decoder(policy, cache, padding, owners, **options)
    uniform = torch.rand(len(owners), device=policy.device)
    for _ in range(num_tokens):
        chosen, _ = draw_next(policy, hidden, uniform, params)
        hidden = own.step(chosen, positions)
        positions = positions + 1
        yield


# --- rows that end one after another


def long_tail(setup: Setup) -> None:
    """Tokens a second where few rows go on for long, leaving a graph as now and soon.

    Each row has a limit that a fixed seed draws, so that machines sample equal lengths.
    """
    policy, chance = random_policy(setup), random.Random(2)
    rows, longest = setup.size(256, 8), setup.size(2048, 64)
    shortest = longest // 64
    limits = [
        round(shortest * (longest / shortest) ** chance.random()) for _ in range(rows)
    ]
    requests = [
        replace(request, max_new_tokens=limit)
        for request, limit in zip(requests_of(policy, rows, 1), limits, strict=True)
    ]
    params = SamplingParams(max_new_tokens=max(limits), temperature=1.0)
    figures, reported = setup.figures, list[Slowed]()
    figures["tokens"] = f"{sum(limits)}, of a row {sum(limits) / rows:.0f}"
    recorded, record = Counter[str](), decoder.record

    def counted(run: Callable[[], None]) -> Callable[[], None]:
        recorded["graphs"] += 1
        return record(run)

    for name, share, least in (
        ("", decoder._LEAVING_SHARE, decoder._LEAST_TOKENS),
        (" if rows leave soon", 1 / 8, 0),
    ):
        engine = engine_of(policy, rows, FAST, reported=reported)
        engine.sample(requests, replace(params, max_new_tokens=4))
        recorded.clear()
        with (
            mock.patch.object(decoder, "_LEAVING_SHARE", share),
            mock.patch.object(decoder, "_LEAST_TOKENS", least),
            mock.patch.object(decoder, "record", counted),
        ):
            found, seconds = timed(setup, partial(engine.sample, requests, params))
        lengths = [len(completion.token_ids) for (completion,) in found]
        if lengths != limits:
            raise Failed("a row is not as long as its limit")
        rate = sum(limits) / seconds
        figures[f"tokens/s{name}"] = f"{rate:.0f} ({recorded['graphs']} recordings)"
    if reported:
        raise Failed(f"a slower way was taken: {reported[0].reason}")


def compare(
    setup: Setup,
    policy: Policy,
    requests: Sequence[Request],
    found: Sequence[tuple[Rollout, ...]],
    when: str,
    noise: float,
) -> None:
    """Failed where sampling and recomputing differ by more than rounding twice does."""
    gap = differences(policy, requests, found)
    mean, most = gap.mean().item(), gap.max().item()
    setup.figures[f"gap{when}"] = f"{mean:.2g} (max {most:.2g})"
    if not mean <= 2.5 * noise + 1e-5:
        raise Failed(f"log-probs of sampling are not the policy's{when}")
