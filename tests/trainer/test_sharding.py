"""A policy is spread over processes part by part; here one of eight, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.trainer.samples import make_batch
from tests.trainer.test_adapters import adapt_as_on_a_gpu
from trainer.config import ModelConfig
from trainer.model.policy import Policy, load_policy
from trainer.parallel import fsdp as sharding
from trainer.parallel.fsdp import ShardedPolicy
from trainer.parallel.world import World

WORLD = World(rank=1, size=8)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """In which all that is sent arrives nowhere."""
    dist.init_process_group(
        "fake", rank=WORLD.rank, world_size=WORLD.size, store=FakeStore()
    )
    yield
    dist.destroy_process_group()


def policy_of(model: Path, **changes: Any) -> Policy:
    return load_policy(ModelConfig(path=str(model), **changes))


def test_bfloat16_weights_are_never_all_in_float32_at_once(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model that fits once it is spread would not get that far."""
    policy = policy_of(model_folder, dtype="bfloat16")
    shard, whole = sharding.fully_shard, []

    def sharded(part: torch.nn.Module, **settings: Any) -> object:
        wide = [p for p in policy.model.parameters() if p.dtype == torch.float32]
        whole.append(sum(p.numel() for p in wide if not isinstance(p, DTensor)))
        return shard(part, **settings)

    monkeypatch.setattr(sharding, "fully_shard", sharded)
    layer, *_ = policy.model.base_model.layers
    in_layer = sum(p.numel() for p in layer.parameters())
    outside = policy.num_parameters - 2 * in_layer

    spread = ShardedPolicy(policy, WORLD)

    assert whole == [in_layer, in_layer, outside]
    assert spread.shards_are_masters
    assert {p.dtype for p in spread.model.parameters()} == {torch.float32}
    assert spread.whole.model.dtype == torch.bfloat16


def test_each_process_keeps_its_part(model_folder: Path) -> None:
    policy = policy_of(model_folder)
    num_parameters = policy.num_parameters

    spread = ShardedPolicy(policy, WORLD)

    parts = [p for p in spread.model.parameters() if isinstance(p, DTensor)]
    assert len(parts) == len(list(spread.model.parameters()))
    assert sum(p.numel() for p in parts) == num_parameters
    assert sum(p.to_local().numel() for p in parts) < num_parameters / 4


def test_adapters_in_bfloat16_have_float32_parts(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapt_as_on_a_gpu(monkeypatch)
    policy = policy_of(model_folder, dtype="bfloat16", lora_rank=4, device="cpu")

    spread = ShardedPolicy(policy, WORLD)
    (micro,) = make_batch(2).micro_batches(max_tokens=100, device=spread.device)
    spread.logprobs(micro, temperature=1.0)[0].sum().backward()

    assert spread.shards_are_masters
    for name, part in spread.model.named_parameters():
        is_adapter = ".lora_" in name
        assert part.dtype == (torch.float32 if is_adapter else torch.bfloat16), name
        assert (part.grad is not None) == is_adapter, name
