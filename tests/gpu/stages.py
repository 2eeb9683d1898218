"""The stages of `make check-gpu`, each in a process of its own: see check.py.

    python -m tests.gpu.stages NAME --device cuda --folder FOLDER

A stage loads what it needs, waits for a line on its input, and prints its result as a
line of JSON.
"""

import argparse
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.bench.random_models import config_of, make_tokenizer
from tests.environment import child_environment
from tests.trainer.samples import update
from tests.trainer.tiny import (
    ROOT,
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from trainer.algorithm.loss import BatchTotals
from trainer.commands.selfcheck import _unscored
from trainer.config import ModelConfig, RunConfig
from trainer.data import Prompt, Row
from trainer.grpo import add_gradients, apply_gradients
from trainer.model.attention import Attention, BlockAttention, make_attention
from trainer.model.budget import GpuMemory, MemoryBudget
from trainer.model.kernels import use_plain_kernels
from trainer.model.loading import prepare_device
from trainer.model.lora import Adapters, add_adapters
from trainer.model.optimizer import Optimizer
from trainer.model.packing import (
    Batch,
    MicroBatch,
    TrainingSample,
    batch_of,
    set_advantages,
)
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import DecodingMethod
from trainer.rollout.engine import Request, SamplingParams, Slowed
from trainer.run.outcome import LossTerms, Pass
from trainer.sizes.memory import CPU_TOKENS
from trainer.tokenizers import first_line
from trainer.types import Rollout

# On the device that others fail on first, and those that start processes.
UNIT_TESTS = (
    "model/test_adapters",
    "rollout/test_decoder",
    "rollout/test_engine_fallback",
    "model/test_flat",
    "parallel/test_launch",
    "model/test_logprobs",
    "test_heartbeat",
    "model/test_reference",
    "serving/test_reference_server",
    "rollout/test_rollout",
    "parallel/test_sharding",
    "test_tensorfile",
)
LARGEST_GAP = 0.03  # nats a token, of sampling in bfloat16
MEMORY_BYTES = 1.25 * 2**30  # for the stage that runs out of it


class Skip(Exception):
    """The stage cannot be tried here; the text says why."""


class Failed(Exception):
    """The stage ran, and what it found is not good enough."""


@dataclass(frozen=True)
class Setup:
    device: str
    tiny: bool
    folder: Path
    starter: Path
    figures: dict[str, Any] = field(default_factory=dict)  # told even of a failure

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def size(self, whole: int, small: int) -> int:
        return small if self.tiny else whole


def environment(setup: Setup) -> None:
    figures = setup.figures
    figures |= {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    for name in ("vllm", "liger_kernel", "trl", "peft", "bitsandbytes"):
        figures[name] = "yes" if importlib.util.find_spec(name) else "no"
    with contextlib.suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        figures["varlen_attn"] = " ".join(inspect.signature(varlen_attn).parameters)
    if setup.device == "cuda":
        if not torch.cuda.is_available():
            raise Failed("torch sees no GPU")
        total = torch.cuda.get_device_properties(0).total_memory
        figures["gpu"] = f"{torch.cuda.get_device_name()}, {total / 2**30:.0f} GiB"
        torch.randn(8, device="cuda").sum().item()


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


def sampling(setup: Setup) -> None:
    """Tokens a second, and how far log-probs of sampling are from recomputed ones."""
    policy, figures = random_policy(setup), setup.figures
    count, group, new = setup.size(64, 4), setup.size(8, 3), setup.size(256, 24)
    requests = requests_of(policy, count, group)
    reported: list[Slowed] = []
    params = SamplingParams(max_new_tokens=new, temperature=1.0)

    def engine(rows: int, ways: list[DecodingMethod]) -> TransformersEngine:
        found = TransformersEngine(policy, max_batch_rows=rows)
        found.on_slowed = reported.append
        # those that this model has on this device
        found._ways = [way for way in found._ways if way in ways]
        return found

    own = engine(count * group, ["graph", "lean"])
    begun = time.monotonic()
    own.sample(requests, SamplingParams(max_new_tokens=4, temperature=1.0))
    figures["first call s"] = round(time.monotonic() - begun, 2)
    found, seconds = timed(setup, lambda: own.sample(requests, params))
    figures["tokens/s"] = round(count * group * new / seconds)
    noise = rounding(setup, policy, requests, found)
    figures["rounding"] = f"{noise:.2g} nats"
    compare(setup, policy, requests, found, "", noise)
    again = own.sample(requests, params)
    figures["same tokens again"] = f"{same_share(found, again):.0%}"
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.02)
    moved = own.sample(requests, params)
    compare(setup, policy, requests, moved, " after an update", noise)
    few = requests[: setup.size(8, 1)]
    for way in ("lean", "plain"):
        slower = engine(64, [way])
        slower.sample(few, SamplingParams(max_new_tokens=4, temperature=1.0))
        found, seconds = timed(setup, lambda each=slower: each.sample(few, params))
        rate = round(len(few) * group * new / seconds)
        figures[f"tokens/s, {len(few) * group} rows, {way}"] = rate
        compare(setup, policy, few, found, f" {way}", noise)
    if reported:
        raise Failed(f"a slower way was taken: {reported[0].reason}")


def runs(setup: Setup) -> None:
    """Whole runs of every kind, beyond the 64th token."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3}
    sizes = {} if setup.tiny else sizes
    model = write_model(setup.folder / "model", **sizes)
    rows = write_rows(setup.folder / "rows.jsonl", 48)
    bf16 = {"dtype": "bfloat16" if setup.device == "cuda" else "float32"}
    kl = {"loss": {"kl_coef": 0.05}}
    variants: dict[str, dict[str, dict[str, Any]]] = {
        "plain": {"model": {"dtype": "float32"}},
        "bf16, KL": {"model": bf16, **kl},
        "LoRA, KL": {"model": {"lora_rank": 4, **bf16}, **kl},
        "checkpointing": {"model": {"gradient_checkpointing": True, **bf16}},
        "2 minibatches × 2": {"optim": {"minibatches": 2, "updates_per_batch": 2}},
        "one step off": {
            "rollout": {"one_step_off": True},
            "loss": {"importance_correction": "token_truncate"},
        },
        "refill": {"rollout": {"dynamic_sampling": "refill", "max_refills": 2}},
        "decoding plain": {"rollout": {"decoding": "plain"}},
        "resumed": {"model": bf16},
    }
    if setup.tiny:
        variants = {"resumed": variants["resumed"]}

    def run(name: str) -> str:
        tree = run_tree(setup, model, rows, variants[name])
        folder = setup.folder / re.sub(r"\W+", "-", name)
        out = folder / "out"
        config = write_config(folder, tree)
        train(config, "--out", out)
        if name == "resumed":
            (saved,) = (out / "checkpoints").glob("step-000002*")
            out = folder / "later"
            train(config, "--out", out, "--resume-from", saved)
        return check_run(read_events(out / "events.jsonl"))

    with ThreadPoolExecutor(4) as pool:
        tried = {name: pool.submit(run, name) for name in variants}
    failed = {
        name: str(each.exception()) for name, each in tried.items() if each.exception()
    }
    for name, each in tried.items():
        setup.figures[name] = "failed" if name in failed else each.result()
    if failed:
        name, reason = next(iter(failed.items()))
        raise Failed(f"{len(failed)} of {len(tried)} failed; {name}: {reason}")


def run_tree(
    setup: Setup, model: Path, rows: Path, changes: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    tree = config_tree(
        model,
        rows,
        rollout={
            "prompts_per_step": setup.size(16, 2),
            "group_size": 8,
            "max_new_tokens": 96,
        },
        optim={"num_steps": 4, "learning_rate": 1e-4, "micro_batch_tokens": 8192},
        checkpoint={"every_steps": 2},
        evaluation={"every_steps": 4},
        distributed={"num_threads": 2},
    )
    for part in (*changes, "model"):
        tree[part] = tree.get(part, {}) | changes.get(part, {})
    tree["model"]["device"] = setup.device
    return tree


def train(config: Path, *options: object) -> None:
    command = [sys.executable, "-m", "trainer", "run", str(config), *map(str, options)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\n")
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")


def check_run(events: list[dict[str, Any]]) -> str:
    """Milliseconds a step; RuntimeError where the run was not as it has to be."""
    steps = [event["metrics"] for event in only(events, "step_finished")]
    fallen = [e for e in only(events, "warned") if e["code"] == "engine_fallback"]
    if fallen:
        raise RuntimeError(fallen[0]["message"])
    first = steps[0].get("mismatch/mean")
    if first is not None and not first <= LARGEST_GAP:
        raise RuntimeError(f"log-probs of sampling are {first:.3g} nats off")
    return f"{1000 * statistics.median(step['time/step'] for step in steps):.0f} ms"


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


def _updates_of(setup: Setup, policy: Policy) -> dict[str, Any]:
    config = RunConfig.model_validate(config_tree(Path("model"), Path("rows.jsonl")))
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
    layout = micro.layout(policy.head.weight.dtype, is_varlen=policy.is_varlen)
    packed = len(layout.input_ids)
    figures: dict[str, Any] = {
        "ms": round(1000 * seconds / 3, 1),
        "tokens/s": round(3 * packed / seconds),
        "TFLOP/s": round(18 * policy.num_parameters * packed / seconds / 1e12, 1),
    }
    figures |= peak(setup, "")
    figures |= _waits_of(setup, policy, optimizer, config)
    if setup.device == "cuda":
        figures |= _planned(policy, optimizer, config, micro, packed)
    return figures


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
    policy: Policy,
    optimizer: Optimizer,
    config: RunConfig,
    micro: MicroBatch,
    num_tokens: int,
) -> dict[str, Any]:
    """What passes are said to take, beside what they take."""
    terms = LossTerms(config, Batch(tuple(micro.samples)).totals)

    def work(micro_batches: Sequence[MicroBatch]) -> None:
        add_gradients(policy, optimizer, micro_batches, terms)
        optimizer.clear()

    memory = GpuMemory(policy.device)
    budget = MemoryBudget("auto", on_halved=lambda *_: None)
    found = budget.measure(policy, config, memory, work)
    tokens = dataclasses.replace(found, free=memory.free_bytes()).tokens
    peak_bytes, _ = memory.peak_bytes(lambda: work([micro, micro]))
    planned = found.fixed + found.each * num_tokens
    return {
        "planned tokens": tokens,
        "planned GiB": round(planned / 2**30, 2),
        "taken GiB": round(peak_bytes / 2**30, 2),
    }


def auto(setup: Setup) -> None:
    """A run without any setting of memory chooses what fits, and finishes."""
    model, out = setup.folder / "auto-model", setup.folder / "auto"
    policy = random_policy(setup)
    policy.save(model)
    del policy
    tree = run_tree(
        setup,
        model,
        write_rows(setup.folder / "rows.jsonl", 48),
        {
            "rollout": {
                "prompts_per_step": setup.size(16, 2),
                "group_size": 8,
                "max_new_tokens": setup.size(512, 24),
            },
            "optim": {"num_steps": 2, "micro_batch_tokens": "auto"},
            "evaluation": {"every_steps": 0},
        },
    )
    if setup.device == "cuda":
        torch.cuda.empty_cache()
    reset_peak(setup)
    done = run_trainer("run", write_config(out, tree), "--out", out / "out")
    events = read_events(out / "out" / "events.jsonl")
    if done.returncode != 0:
        for event in only(events, "run_failed"):
            sys.stderr.write(event["details"])
        raise Failed(f"exit code {done.returncode}: {done.stderr[-300:]}")
    saved = max((out / "out" / "checkpoints").glob("step-*"))
    memory = json.loads((saved / "controllers.json").read_text())["memory"]
    chosen = memory.get("chosen", {"tokens": CPU_TOKENS, "checkpointing": False})
    setup.figures.update({**chosen, **peak(setup, "")})
    setup.figures["halved"] = memory["limit"] is not None
    if ("chosen" in memory) != (setup.device == "cuda"):
        raise Failed("sizes are chosen on a GPU, and only there")
    if memory["limit"] is not None:
        raise Failed("what was chosen did not fit")


def out_of_memory(setup: Setup) -> None:
    """A run that has too little memory halves what it does at once, and finishes."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(MEMORY_BYTES / total)
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    more = {"max_position_embeddings": 512, "num_attention_heads": 8}
    model = write_model(setup.folder / "large", **sizes, **more)
    tree = run_tree(
        setup,
        model,
        write_rows(setup.folder / "rows.jsonl", 48),
        {
            "rollout": {
                "prompts_per_step": 32,
                "group_size": 64,
                "max_new_tokens": 320,
                "max_batch_rows": 4096,
            },
            "optim": {"micro_batch_tokens": 131_072, "num_steps": 2},
            "evaluation": {"every_steps": 0},
        },
    )
    out = setup.folder / "out-of-memory"
    done = run_trainer("run", write_config(out, tree), "--out", out / "out")
    figures = setup.figures
    if done.returncode != 0:
        for event in only(read_events(out / "out" / "events.jsonl"), "run_failed"):
            sys.stderr.write(event["details"])
        raise Failed(f"exit code {done.returncode}: {done.stderr[-300:]}")
    warned = only(read_events(out / "out" / "events.jsonl"), "warned")
    for what, name in (("completions", "rows"), ("tokens", "micro-batch tokens")):
        found = [
            each["value"]
            for each in warned
            if each["code"] == "out_of_memory" and f"{what} " in each["message"]
        ]
        figures[name] = " → ".join(f"{value:.0f}" for value in found) or "never"
    # sampling takes as many rows as fit, so it need not run out
    if figures["micro-batch tokens"] == "never":
        raise Failed("memory was enough, so nothing was shown")


def learning(setup: Setup) -> None:
    """The starter's reward rises on this device; its steps alone on the machine."""
    num_steps = setup.size(40, 2)
    bf16 = "bfloat16" if setup.device == "cuda" else "float32"
    recipe = json.loads((setup.starter / "recipe.json").read_text())
    tree = {
        "model": {
            "path": str(setup.starter / "model"),
            "device": setup.device,
            "dtype": bf16,
        },
        "data": {
            "rows": str(setup.starter / "rows.jsonl"),
            "num_eval_rows": 64,
            "chat_template": "none",
            "max_prompt_tokens": 32,
        },
        "rollout": {
            "prompts_per_step": setup.size(32, 4),
            "group_size": 8,
            "max_new_tokens": 96,
        },
        "reward": {"recipe": recipe},
        "optim": {
            "num_steps": num_steps,
            "learning_rate": 3e-4,
            "micro_batch_tokens": 32_768,
        },
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
    }
    folder = setup.folder / "learning"
    train(write_config(folder, tree), "--out", folder / "out")
    events = read_events(folder / "out" / "events.jsonl")
    steps = [event["metrics"] for event in only(events, "step_finished")]
    rewards = [step["reward/mean"] for step in steps]
    first, last = statistics.mean(rewards[:5]), statistics.mean(rewards[-5:])
    figures = setup.figures
    figures["reward"] = f"{first:.3f} → {last:.3f}"
    for phase in ("step", "generate", "score", "update", "sync"):
        values = [each[f"time/{phase}"] or 0.0 for each in steps[1:]]
        figures[f"{phase} s"] = round(statistics.median(values), 3)
    figures["mismatch"] = f"{statistics.mean(s['mismatch/mean'] for s in steps):.2g}"
    if not setup.tiny and not last - first >= 0.05:
        raise Failed("the reward did not rise by 0.05")


def unit_tests(setup: Setup) -> None:
    """Tests of the engine on a machine with a GPU, which is hidden from them."""
    files = [f"tests/trainer/{name}.py" for name in UNIT_TESTS]
    marks = "not slow and not faults and not vllm"
    chosen = []
    if importlib.util.find_spec("bitsandbytes") is None:
        chosen = ["-k", "not four_bits and not 4_bits"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-n", "8"]
    options = ["--rootdir", str(ROOT), "--confcutdir", "tests/trainer", "-m", marks]
    options += ["--import-mode", "importlib", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, *options, *chosen, *files],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stdout[-20_000:])
    (end,) = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-300:]]
    setup.figures["pytest"] = end.strip("= ")
    if done.returncode != 0:
        failed = re.findall(r"^(?:FAILED|ERROR) \S+", done.stdout, re.M)
        raise Failed("; ".join(failed[:8]) or f"exit code {done.returncode}")


def trl(setup: Setup) -> None:
    """Steps beside TRL's, which are only told."""
    absent = [n for n in ("trl", "datasets") if importlib.util.find_spec(n) is None]
    if absent:
        raise Skip(f"no {', '.join(absent)}")
    out = setup.folder / "bench.json"
    options = ["--model", "0.5B", "--part", "step", "--minutes", "2", "--steps", "1"]
    options += ["--prompts", "32", "--new", "256"]
    options += ["--folder", str(setup.folder / "bench"), "--out", str(out)]
    command = [sys.executable, "-m", "tests.bench.bench_gpu", *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    (part,) = json.loads(out.read_text())["parts"]
    (row,) = part["table"]
    setup.figures |= {"TRL tokens/s": row[1], "Cohort": row[2], "ratio": row[3]}


# --- what stages share


def random_policy(setup: Setup, **settings: Any) -> Policy:
    """Of random weights in the sizes of Qwen2.5-0.5B; no completion ends by itself."""
    config = config_of("tiny" if setup.tiny else "0.5B")
    torch.manual_seed(0)
    with torch.device(setup.device):
        model = AutoModelForCausalLM.from_config(config, dtype=setup.dtype)
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)  # so that some tokens are likelier
    model.eval()
    chosen = ModelConfig(path="random", **settings)
    adapters = None
    if chosen.lora_rank:
        add_adapters(model, chosen)
        adapters = Adapters(model, base={})
    policy = Policy(model, make_tokenizer(config.vocab_size), adapters=adapters)
    if chosen.gradient_checkpointing is True:
        policy.set_checkpointing(on=True)
    slower = policy.choose_form()
    if slower:
        raise Failed(slower)
    return policy


def requests_of(policy: Policy, count: int, group: int) -> list[Request]:
    chance, vocabulary = random.Random(0), policy.head.weight.shape[0]
    requests = []
    for index in range(count):
        ids = [chance.randrange(1, vocabulary) for _ in range(chance.randint(64, 128))]
        seeds = tuple(1000 * index + k for k in range(group))
        requests.append(Request(token_ids=tuple(ids), seeds=seeds))
    return requests


def micro_batch(setup: Setup, policy: Policy, *, tokens: int) -> MicroBatch:
    """So many tokens in groups of 8 that share prompts of 256, as one micro-batch."""
    chance, vocabulary = random.Random(1), policy.head.weight.shape[0]
    prompt, completion = setup.size(256, 8), setup.size(512, 24)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(1, vocabulary) for _ in range(count))

    samples: list[TrainingSample] = []
    while sum(each.num_tokens for each in samples) + prompt + completion <= tokens:
        if len(samples) % 8 == 0:
            shared = ids(prompt)
        length = chance.randint(completion // 2, completion)
        logprobs = (-11.0,) * length
        samples.append(
            TrainingSample(
                prompt_ids=shared,
                completion_ids=ids(length),
                sampling_logprobs=logprobs,
            )
        )
    batch = Batch(tuple(samples))
    micro = batch.pack([*range(len(samples))], device=policy.device)
    set_advantages([micro], torch.randn(1, len(samples), dtype=torch.float64).numpy())
    return micro


def exact_copy(policy: Policy) -> Policy:
    """The same weights in float32, in the padded form that every model takes."""
    model = copy.deepcopy(policy.model).float()
    use_plain_kernels(model)
    exact = Policy(model, policy.tokenizer)
    exact.form = "padded"
    return exact


def _prompt_of(token_ids: tuple[int, ...]) -> Prompt:
    row = Row(index=0, prompt="", answer=None, columns={})
    return Prompt(text="", token_ids=token_ids, row=row)


def differences(
    policy: Policy,
    requests: Sequence[Request],
    found: Sequence[tuple[Rollout, ...]],
    *,
    exact: Policy | None = None,
) -> torch.Tensor:
    """|log-prob of sampling - the policy's|, or of the policy's own and exact ones."""
    prompts = [_prompt_of(each.token_ids) for each in requests]
    batch = batch_of(_unscored(prompts, found))
    parts = []
    with torch.no_grad():
        for micro in batch.micro_batches(max_tokens=16_384, device=policy.device):
            logprob, _ = policy.logprobs(micro, temperature=1.0)
            other = micro.sampling_logprobs
            if exact is not None:
                other, _ = exact.logprobs(micro, temperature=1.0)
            parts.append((logprob - other)[micro.mask > 0].abs())
    return torch.cat(parts)


def rounding(
    setup: Setup,
    policy: Policy,
    requests: Sequence[Request],
    found: Sequence[tuple[Rollout, ...]],
) -> float:
    """How far the policy's log-probs are from float32 ones, in nats a token."""
    few = setup.size(8, 2)
    exact = exact_copy(policy)
    gap = differences(policy, requests[:few], found[:few], exact=exact)
    return gap.mean().item()


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


def same_share(
    one: Sequence[tuple[Rollout, ...]], other: Sequence[tuple[Rollout, ...]]
) -> float:
    pairs = zip(
        (each.token_ids for group in one for each in group),
        (each.token_ids for group in other for each in group),
        strict=True,
    )
    return statistics.mean(a == b for a, b in pairs)


def timed(setup: Setup, work: Callable[[], Any]) -> tuple[Any, float]:
    wait(setup)
    begun = time.perf_counter()
    found = work()
    wait(setup)
    return found, time.perf_counter() - begun


def wait(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.synchronize()


def reset_peak(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak(setup: Setup, name: str) -> dict[str, Any]:
    if setup.device != "cuda":
        return {}
    return {f"{name}GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}


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


STAGES: dict[str, Callable[[Setup], None]] = {
    "environment": environment,
    "attention": attention,
    "sampling": sampling,
    "runs": runs,
    "logprobs": logprobs,
    "update": updates,
    "auto": auto,
    "out_of_memory": out_of_memory,
    "learning": learning,
    "unit_tests": unit_tests,
    "trl": trl,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--starter", type=Path, required=True)
    args = parser.parse_args()
    starter = args.starter.resolve()  # configurations name it from another folder
    setup = Setup(args.device, args.tiny, args.folder, starter)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prepare_device(torch.device(args.device))
    if not sys.stdin.readline():
        return 1  # the check that started it has ended
    status, reason = "PASS", ""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            STAGES[args.stage](setup)
        except Skip as skip:
            status, reason = "SKIP", str(skip)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            status, reason = "FAIL", f"{type(error).__name__}: {first_line(error)}"
            traceback.print_exc()
    found = {"status": status, "reason": reason, "figures": setup.figures}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
