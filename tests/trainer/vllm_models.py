"""Models that vLLM's kernels can run, and comparing what it says of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.trainer.tiny import write_model
from trainer.config import DataConfig, ModelConfig
from trainer.data import PromptRenderer, Row
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy, load_policy
from trainer.rollout.engine import Request
from trainer.rollout.server_engine import VllmServerEngine
from trainer.rollout.vllm import SamplerSettings, VllmProcess
from trainer.types import Rollout

# vLLM's attention on a CPU has heads of 32 numbers at least.
SIZES = {"hidden_size": 128, "intermediate_size": 256}
CLOSE = 1e-4  # nats, in float32
TEXTS = ["1+1=", "a", "(12 - 3) * 7 = ?\n", "12345678901234567890=", "b>c"]


def write_wide_model(folder: Path, **changes: Any) -> Path:
    return write_model(folder, **(SIZES | changes))


def cpu_policy(folder: Path, **settings: Any) -> Policy:
    return load_policy(
        ModelConfig(path=str(folder), device="cpu", dtype="float32", **settings)
    )


def start_process(
    folder: Path, *, restarts: bool = True, **settings: Any
) -> VllmProcess:
    settings = {"max_length": 256, "max_rows": 64, "cache_gib": 0.125} | settings
    process = VllmProcess(
        SamplerSettings(model=str(folder), **settings),
        torch.device("cpu"),
        restarts=restarts,
    )
    process.hold()
    return process


def engine_of(policy: Policy, process: VllmProcess) -> VllmServerEngine:
    process.swaps = False  # as of another policy
    return VllmServerEngine(policy, [process])


def requests_of(
    policy: Policy, group_size: int, texts: Sequence[str] = TEXTS
) -> list[Request]:
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    rows = [
        Row(index=n, prompt=text, answer=None, columns={})
        for n, text in enumerate(texts)
    ]
    return [
        Request(
            token_ids=renderer.render(row).token_ids,
            seeds=tuple(2**64 - 1 - 1000 * row.index - k for k in range(group_size)),
        )
        for row in rows
    ]


def stir(policy: Policy, *, size: float = 0.05, seed: int = 1) -> None:
    """Another policy in the same place, as after an update."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(size * noise)


def largest_gap(
    policy: Policy,
    requests: Sequence[Request],
    groups: Sequence[Sequence[Rollout]],
    *,
    temperature: float,
) -> float:
    """|log π of the policy - log π of the engine| over all tokens, in nats."""
    samples = tuple(
        TrainingSample(
            prompt_ids=request.token_ids,
            completion_ids=completion.token_ids,
            sampling_logprobs=completion.logprobs,
        )
        for request, group in zip(requests, groups, strict=True)
        for completion in group
    )
    worst = 0.0
    for micro in Batch(samples).micro_batches(max_tokens=400, device=policy.device):
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, temperature=temperature)
        gaps = (logprobs - micro.sampling_logprobs).abs() * micro.mask
        worst = max(worst, gaps.max().item())
    return worst


def ids_of(groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]
