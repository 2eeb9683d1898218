"""What the stages of `make check-gpu` share: their setup, models, batches, clocks."""

import copy
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.bench.random_models import config_of, make_tokenizer
from trainer.commands.selfcheck import _unscored
from trainer.config import ModelConfig
from trainer.data import Prompt, Row
from trainer.model.kernels import use_plain_kernels
from trainer.model.lora import Adapters, add_adapters
from trainer.model.packing import (
    Batch,
    MicroBatch,
    TrainingSample,
    batch_of,
    set_advantages,
)
from trainer.model.policy import Policy
from trainer.rollout.engine import Request
from trainer.types import Rollout


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


def random_policy(
    setup: Setup, *, vocabulary: int | None = None, **settings: Any
) -> Policy:
    """Of random weights in the sizes of Qwen2.5-0.5B; no completion ends by itself."""
    config = config_of("tiny" if setup.tiny else "0.5B")
    config.vocab_size = vocabulary or config.vocab_size
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
