"""Log-probs, updates and their memory on a GPU: see check.py."""

import dataclasses
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.gpu.setup import (
    Failed,
    Setup,
    exact_copy,
    micro_batch,
    peak,
    random_policy,
    reset_peak,
    timed,
)
from tests.trainer.samples import update
from tests.trainer.tiny import ROOT, config_tree
from trainer.algorithm.loss import BatchTotals
from trainer.config import ReferenceConfig, RunConfig
from trainer.grpo import add_gradients, apply_gradients
from trainer.model import kernels
from trainer.model.budget import GpuMemory, MemoryBudget
from trainer.model.kernels import use_plain_kernels, use_plain_layers
from trainer.model.optimizer import Optimizer
from trainer.model.packing import Batch, MicroBatch
from trainer.model.policy import Policy
from trainer.model.reference import FrozenReference, ParkedReference
from trainer.run.outcome import LossTerms, Pass
from trainer.sizes.memory import PassMemory


def logprobs(setup: Setup) -> None:
    """A packed row with shared prompts against padded rows: values and gradients.

    Both are compared with float32, whose distance says what rounding alone does.
    """
    policy, figures = random_policy(setup), setup.figures
    micro = micro_batch(setup, policy, tokens=setup.size(16_384, 256))
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def passed(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
        weight = policy.body.layers[0].self_attn.q_proj.weight
        policy.model.zero_grad(set_to_none=True)
        logprob, _ = policy.logprobs(micro, temperature=1.0)
        (logprob * micro.mask).sum().backward()
        assert weight.grad is not None
        return logprob.detach(), weight.grad.float()

    kept = policy.form, policy.is_varlen
    forms = {"packed": kept, "padded": ("padded", False)}
    if setup.device == "cuda":
        forms |= {"blocks": ("packed", False), "own pass": ("flat", kept[1])}
    for name, (policy.form, policy.is_varlen) in forms.items():
        passed(policy)
        reset_peak(setup)
        found[name], seconds = timed(setup, lambda: passed(policy))
        figures[f"{name} ms"] = round(1000 * seconds, 1)
        figures |= peak(setup, f"{name} ")
    exact = passed(exact_copy(policy))
    for name, (logprob, gradient) in found.items():
        gap = ((logprob - exact[0]).abs() * micro.mask).sum() / micro.mask.sum()
        slope = (gradient - exact[1]).norm() / exact[1].norm()
        figures[f"{name} off"] = f"{gap.item():.2g} nats, gradient {slope.item():.2g}"
        found[name] = gap, slope
    if setup.device == "cuda":
        use_plain_kernels(policy.model)
        policy.form, policy.is_varlen = kept
        passed(policy)
        _, seconds = timed(setup, lambda: passed(policy))
        figures["plain kernels ms"] = round(1000 * seconds, 1)
    for packed, padded in zip(found["packed"], found["padded"], strict=True):
        if not packed.item() <= 1.2 * padded.item() + 1e-5:
            raise Failed("packed rows are further from float32 than padded ones")


def teacher(setup: Setup) -> None:
    """A teacher that is parked in main memory answers as one that stays on the GPU."""
    policy, figures = random_policy(setup), setup.figures
    micro = micro_batch(setup, policy, tokens=setup.size(16_384, 256))
    answers = []
    for name, make in (
        ("resident", lambda: FrozenReference(policy, ReferenceConfig())),
        ("parked", lambda: ParkedReference(policy, home=torch.device("cpu"))),
    ):
        reference = make()
        reference.add_logprobs([micro], temperature=1.0)
        reset_peak(setup)
        _, seconds = timed(
            setup, partial(reference.add_logprobs, [micro], temperature=1.0)
        )
        figures[f"{name} ms"] = round(1000 * seconds, 1)
        figures |= peak(setup, f"{name} ")
        if setup.device == "cuda":
            held = torch.cuda.memory_allocated()
            figures[f"{name}, between passes GiB"] = round(held / 2**30, 2)
        assert micro.reference_logprobs is not None
        answers.append(micro.reference_logprobs)
    if not torch.equal(*answers):
        raise Failed("a parked teacher's log-probs are not a resident one's")


def updates(setup: Setup) -> None:
    """Three updates of each kind: tokens a second, peak memory, waits of the host."""
    for name, settings in (
        ("plain", {}),
        ("checkpointing", {"gradient_checkpointing": True}),
        ("LoRA", {"lora_rank": 16}),
    ):
        found = _updates_of(setup, random_policy(setup, **settings))
        setup.figures.update({f"{name} {key}": value for key, value in found.items()})
        if setup.device == "cuda":
            torch.cuda.empty_cache()


def make_config() -> RunConfig:
    return RunConfig.model_validate(config_tree(Path("model"), Path("rows.jsonl")))


def _updates_of(setup: Setup, policy: Policy) -> dict[str, Any]:
    config = make_config()
    optimizer = Optimizer(policy, config.optim)
    micro = micro_batch(setup, policy, tokens=setup.size(16_384, 256))
    totals = Batch(tuple(micro.samples)).totals

    def once() -> None:
        micro.old_logprobs = None
        update(
            policy,
            optimizer,
            [micro],
            totals=totals,
            config=config,
            learning_rate=1e-6,
        )

    once()
    reset_peak(setup)
    _, seconds = timed(setup, lambda: [once() for _ in range(3)])
    packed = num_packed(policy, micro)
    figures: dict[str, Any] = {
        "ms": round(1000 * seconds / 3, 1),
        "tokens/s": round(3 * packed / seconds),
        "TFLOP/s": round(18 * policy.num_parameters * packed / seconds / 1e12, 1),
    }
    figures |= peak(setup, "")
    with rotations_as_they_were(policy):
        once()
        _, seconds = timed(setup, lambda: [once() for _ in range(3)])
    figures["ms with transformers' rotations"] = round(1000 * seconds / 3, 1)
    figures |= _waits_of(setup, policy, optimizer, config)
    if policy.form == "packed":
        figures |= _compiled(setup, policy, micro, once)
    if setup.device == "cuda":
        found, planned, taken = _planned(setup, policy, optimizer, config, micro)
        free = GpuMemory(policy.device).free_bytes()
        figures |= {
            "planned tokens": dataclasses.replace(found, free=free).tokens,
            "planned GiB": round(planned / 2**30, 2),
            "taken GiB": round(taken / 2**30, 2),
        }
    return figures


def _compiled(
    setup: Setup, policy: Policy, micro: MicroBatch, once: Callable[[], None]
) -> dict[str, Any]:
    """An update by compiled layers; Failed where log-probs are not the plain ones'."""

    def mean_logprob() -> float:
        with torch.no_grad():
            logprob, _ = policy.logprobs(micro, temperature=1.0)
        return ((logprob * micro.mask).sum() / micro.mask.sum()).item()

    plain = mean_logprob()
    _, compiling = timed(setup, partial(policy.compile_layers, on=True))
    if policy.slowed:
        raise Failed(policy.slowed)
    gap = abs(mean_logprob() - plain)
    once()
    reset_peak(setup)
    _, seconds = timed(setup, lambda: [once() for _ in range(3)])
    figures = {
        "ms compiled": round(1000 * seconds / 3, 1),
        "to compile s": round(compiling, 1),
        "compiled off": f"{gap:.2g} of {abs(plain):.2g} nats",
    }
    figures |= peak(setup, "compiled ")
    use_plain_layers(policy.body.layers)
    if not gap <= 1e-3 * abs(plain):
        raise Failed("log-probs of compiled layers are not those of plain ones")
    return figures


@contextmanager
def rotations_as_they_were(policy: Policy) -> Iterator[None]:
    """transformers' own, inside, where one function has taken their place."""
    sources = [
        source
        for source in kernels._sources_of_rotations(policy.model)
        if vars(source)[kernels._ROTATION] is kernels.rotate_both
    ]
    for source in sources:
        vars(source)[kernels._ROTATION] = kernels._LLAMAS[kernels._ROTATION]
    try:
        yield
    finally:
        for source in sources:
            vars(source)[kernels._ROTATION] = kernels.rotate_both


def _waits_of(
    setup: Setup, policy: Policy, optimizer: Optimizer, config: RunConfig
) -> dict[str, Any]:
    """How often and where the host waits for the GPU in an update."""
    passes: list[Pass] = []

    def waits_over(count: int) -> list[str]:
        """In a pass; where the tokens of each micro-batch lie is found in it, too."""
        size = setup.size(4_096, 128)
        micros = [micro_batch(setup, policy, tokens=size) for _ in range(count)]
        terms = LossTerms(config, Batch(tuple(micros[0].samples)).totals)
        return waits_in(
            lambda: passes.append(add_gradients(policy, optimizer, micros, terms))
        )

    waits_over(2)  # kernels are made once
    one, two = waits_over(1), waits_over(2)
    totals = BatchTotals(num_tokens=1, num_sequences=1)
    two_and_step = two + waits_in(
        lambda: apply_gradients(optimizer, passes[-1], totals, learning_rate=1e-6)
    )
    places = ", ".join(sorted(set(two_and_step)))
    if len(two) > len(one):
        raise Failed(f"each micro-batch waits for the GPU, at one of {places}")
    return {"waits": len(two_and_step), "waits at": places or "nowhere"}


def _planned(
    setup: Setup,
    policy: Policy,
    optimizer: Optimizer,
    config: RunConfig,
    micro: MicroBatch,
) -> tuple[PassMemory, float, int]:
    """What passes are said to take, what these tokens are said to, and what they do."""
    terms = LossTerms(config, Batch(tuple(micro.samples)).totals)

    def work(micro_batches: Sequence[MicroBatch]) -> None:
        add_gradients(policy, optimizer, micro_batches, terms)
        optimizer.clear()

    memory: Any = KeptBytes()
    if setup.device == "cuda":
        memory = GpuMemory(policy.device)
    budget = MemoryBudget("auto", on_halved=lambda *_: None)
    found = budget.measure(policy, config, memory, work)
    taken, _ = memory.peak_bytes(lambda: work([micro, micro]))
    return found, found.fixed + found.each * num_packed(policy, micro), taken


def num_packed(policy: Policy, micro: MicroBatch) -> int:
    layout = micro.layout(policy.head.weight.dtype, is_varlen=policy.is_varlen)
    return len(layout.input_ids)


class KeptBytes:
    """On a CPU, where torch counts no bytes: those kept for a backward pass."""

    def peak_bytes(self, work: Callable[[], Any]) -> tuple[int, Any]:
        kept: dict[int, int] = {}
        most = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal most
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            most = max(most, sum(kept.values()))
            return tensor

        def use(tensor: torch.Tensor) -> torch.Tensor:
            kept.clear()  # the backward pass has begun
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, use):
            result = work()
        return most, result


def vocabulary(setup: Setup) -> None:
    """What passes are said to take beside what they take, for two vocabularies."""
    bounds, failed = (0.7, 1.3), []
    for size in (32_000, 152_000):
        for recomputes in (False, True)[: setup.size(2, 1)]:
            tokens = setup.size(size, size // 100)
            policy = random_policy(
                setup, gradient_checkpointing=recomputes, vocabulary=tokens
            )
            config = make_config()
            micro = micro_batch(setup, policy, tokens=setup.size(16_384, 6_144))
            optimizer = Optimizer(policy, config.optim)
            found, planned, taken = _planned(setup, policy, optimizer, config, micro)
            name = f"{tokens}{', recomputing' if recomputes else ''}"
            setup.figures[name] = (
                f"planned {planned / 2**30:.3g} of {taken / 2**30:.3g} GiB, "
                f"{planned / taken:.2f} ({found.each / 1000:.0f} kB a token)"
            )
            if not bounds[0] <= planned / taken <= bounds[1]:
                failed.append(name)
            if setup.device == "cuda":
                del policy, optimizer, micro
                torch.cuda.empty_cache()
    if failed:
        raise Failed(f"planned is not near to what is taken: {'; '.join(failed)}")


def waits_in(work: Callable[[], Any]) -> list[str]:
    """Where in the trainer the host waits for the GPU, each time that it does."""
    found: list[str] = []

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing" in str(message):
            found.append(place_in_trainer(traceback.extract_stack()))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
    return found


def place_in_trainer(stack: traceback.StackSummary) -> str:
    """The innermost line of the trainer, such as model/optimizer.py:40."""
    folder = f"{ROOT / 'trainer'}{os.sep}"
    lines = [
        f"{frame.filename.removeprefix(folder)}:{frame.lineno}"
        for frame in stack
        if frame.filename.startswith(folder)
    ]
    return lines[-1] if lines else "elsewhere"
