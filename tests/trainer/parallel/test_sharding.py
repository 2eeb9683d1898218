"""A policy is spread over processes part by part; here one of eight, and no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.trainer.model.test_adapters import adapt_as_on_a_gpu
from tests.trainer.model.test_minibatches import CPU
from tests.trainer.samples import make_batch
from tests.trainer.tiny import config_tree
from trainer.config import ModelConfig, RunConfig
from trainer.model.microbatches import Minibatch, shard_micro_batches
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import make_reference
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


def test_bfloat16_weights_are_never_all_in_float32_at_once(model_folder, monkeypatch):
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


def test_each_process_keeps_its_part(model_folder):
    policy = policy_of(model_folder)
    num_parameters = policy.num_parameters

    spread = ShardedPolicy(policy, WORLD)

    parts = [p for p in spread.model.parameters() if isinstance(p, DTensor)]
    assert len(parts) == len(list(spread.model.parameters()))
    assert sum(p.numel() for p in parts) == num_parameters
    assert sum(p.to_local().numel() for p in parts) < num_parameters / 4


def test_each_node_keeps_all_parts(model_folder):
    policy = policy_of(model_folder)
    num_parameters = policy.num_parameters

    spread = ShardedPolicy(policy, WORLD, num_shards=4)

    parts = [p for p in spread.model.parameters() if isinstance(p, DTensor)]
    assert sum(p.numel() for p in parts) == num_parameters
    own = sum(p.to_local().numel() for p in parts)
    assert num_parameters / 4 <= own < num_parameters / 2
    assert spread.num_shards == 4
    assert dist.get_process_group_ranks(spread.replicas) == [1, 5]


@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_each_process_keeps_its_part_of_a_reference(estimator, model_folder, rows_path):
    loss = {"kl_coef": 0.1, "kl_estimator": estimator}
    tree = config_tree(model_folder, rows_path, loss=loss)
    (phase,) = RunConfig.model_validate(tree).phase_configs
    spread = ShardedPolicy(policy_of(model_folder), WORLD)

    reference = make_reference(phase, spread)

    weights = dict(reference.policy.model.named_parameters())
    whole = {name for name, part in weights.items() if not isinstance(part, DTensor)}
    ends = {"model.embed_tokens.weight", "model.norm.weight"}
    assert whole == (ends if estimator == "full" else set())


def test_adapters_in_bfloat16_have_float32_parts(model_folder, monkeypatch):
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


@given(num_parts=st.integers(1, 60), num_shards=st.integers(1, 9))
def test_all_hands_are_equal_and_each_part_is_dealt_once(num_parts, num_shards):
    shards = shard_micro_batches(num_parts, num_shards=num_shards)

    assert sorted(p for shard in shards for p in shard.places) == list(range(num_parts))
    sizes = {len(shard.places) + (shard.filler is not None) for shard in shards}
    assert len(sizes) == 1


def test_a_single_process_keeps_the_order():
    (shard,) = shard_micro_batches(5, num_shards=1)

    assert shard.places == [0, 1, 2, 3, 4]
    assert shard.filler is None


def test_each_round_is_of_parts_of_like_length():
    shards = shard_micro_batches(12, num_shards=3)

    rounds = zip(*(shard.places for shard in shards), strict=True)
    assert all(max(places) - min(places) == 2 for places in rounds)


def test_three_processes_cover_the_weights_of_one():
    batch = make_batch(7)
    one = Minibatch(batch, max_tokens=30, device=CPU)
    three = [
        Minibatch(batch, max_tokens=30, device=CPU, world=World(rank=rank, size=3))
        for rank in range(3)
    ]

    assert len(one.micro_batches) == 4, "two of three must take a filler"
    assert [len(each.micro_batches) for each in three] == [2, 2, 2]
    covered = [float(m.mask.sum()) for each in three for m in each.micro_batches]
    assert sum(covered) == sum(micro.mask.sum() for micro in one.micro_batches)
    assert covered.count(0.0) == 2


def test_idle_micro_batches_match_in_number_and_weigh_nothing():
    minibatch = Minibatch(make_batch(7), max_tokens=30, device=CPU)

    idle = minibatch.idle_micro_batches()

    assert len(idle) == len(minibatch.micro_batches)
    assert not any(micro.mask.any() for micro in idle)
