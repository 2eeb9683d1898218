"""Micro-batches are shard so that all processes go through equally many."""

from __future__ import annotations

import pytest

from tests.trainer.samples import make_batch
from tests.trainer.test_minibatches import CPU
from trainer.model.microbatches import Minibatch, shard_micro_batches
from trainer.parallel.world import World


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 8, 50])
def test_all_hands_are_equal_and_each_part_is_dealt_once(
    num_parts: int, num_shards: int
) -> None:
    shards = shard_micro_batches(num_parts, num_shards=num_shards)

    assert sorted(p for shard in shards for p in shard.places) == list(range(num_parts))
    sizes = {len(shard.places) + (shard.filler is not None) for shard in shards}
    assert len(sizes) == 1


def test_a_single_process_keeps_the_order() -> None:
    (shard,) = shard_micro_batches(5, num_shards=1)

    assert shard.places == [0, 1, 2, 3, 4]
    assert shard.filler is None


def test_each_round_is_of_parts_of_like_length() -> None:
    shards = shard_micro_batches(12, num_shards=3)

    rounds = zip(*(shard.places for shard in shards), strict=True)
    assert all(max(places) - min(places) == 2 for places in rounds)


def test_what_three_processes_cover_is_what_one_does() -> None:
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


def test_micro_batches_to_keep_step_with_are_as_many_and_weigh_nothing() -> None:
    minibatch = Minibatch(make_batch(7), max_tokens=30, device=CPU)

    idle = minibatch.idle_micro_batches()

    assert len(idle) == len(minibatch.micro_batches)
    assert not any(micro.mask.any() for micro in idle)
