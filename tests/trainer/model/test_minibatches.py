"""Minibatches: split again with their log-probs, and finer where memory is short."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, get_ident

import numpy as np
import pytest
import torch

from tests.trainer.samples import make_batch
from trainer.config import LossConfig
from trainer.model.budget import MemoryBudget
from trainer.model.microbatches import (
    Minibatch,
    completion_sums,
    in_batch_order,
)
from trainer.model.packing import Batch, MicroBatch
from trainer.parallel.world import ALONE

CPU = torch.device("cpu")


def cut(batch: Batch, max_tokens: int) -> Minibatch:
    return Minibatch(batch, max_tokens=max_tokens, device=CPU)


def label(minibatch: Minibatch) -> None:
    """Log-probs that name their completion and their place in it."""
    for micro in minibatch.micro_batches:
        rows = torch.tensor(micro.members).float()[:, None] * 100
        micro.reference_logprobs = rows + torch.arange(micro.mask.shape[1])


def read(minibatch: Minibatch, name: str) -> dict[int, list[float]]:
    """Each completion's values, without padding."""
    found = {}
    for micro in minibatch.micro_batches:
        for index, member in enumerate(micro.members):
            inside = micro.completion_mask[index] > 0
            found[member] = getattr(micro, name)[index][inside].tolist()
    return found


def test_log_probs_follow_their_completions_into_another_cut():
    minibatch = cut(make_batch(9), 200)
    label(minibatch)
    before = read(minibatch, "reference_logprobs")

    minibatch.cut(30)

    assert len(minibatch.micro_batches) > 3
    assert read(minibatch, "reference_logprobs") == before


def test_log_probs_that_only_some_parts_have_are_computed_again():
    minibatch = cut(make_batch(9), 40)
    label(minibatch)
    minibatch.micro_batches[-1].reference_logprobs = None

    minibatch.cut(30)

    assert all(m.reference_logprobs is None for m in minibatch.micro_batches)


def test_advantages_stay_set():
    batch = make_batch(6)
    minibatch = cut(batch, 200)
    minibatch.set_advantages(np.arange(6.0))

    minibatch.cut(30)

    for micro in minibatch.micro_batches:
        assert micro.advantages.tolist() == micro.members


def test_sums_leave_padding_and_keep_the_batchs_order():
    batch = make_batch(5)
    minibatch = cut(batch, 40)
    ones = [torch.ones_like(micro.mask) for micro in minibatch.micro_batches]

    sums = in_batch_order(ALONE, completion_sums(minibatch.micro_batches, ones))

    assert sums.tolist() == [len(s.completion_ids) for s in batch.samples]


def masked_batch() -> Batch:
    """The loss leaves out the end of each completion, and all of truncated ones."""
    loss = LossConfig(mask_end_token=True, mask_truncated=True)
    samples = list(make_batch(9).samples)
    samples[4] = replace(samples[4], end_reason="length")
    return Batch(tuple(samples), loss=loss)


def choose_even(numbers: np.ndarray, of_completion: np.ndarray) -> np.ndarray:
    assert (numbers // 100 == of_completion).all()
    assert numbers.tolist() == sorted(numbers)
    return numbers % 2 == 0


def in_share(share: Minibatch, name: str) -> dict[tuple[int, int], bool]:
    """Tell of each token of a process's loss whether it is picked."""
    return {
        (member, slot): bool(getattr(micro, name)[row, slot])
        for micro in share.micro_batches
        for row, member in enumerate(micro.members)
        for slot in micro.mask[row].nonzero()[:, 0].tolist()
    }


class Threads:
    """Processes that are threads here."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, Barrier(size)
        self.values: list[object] = [None] * size
        self.ranks: dict[int, int] = {}

    @property
    def rank(self) -> int:
        return self.ranks.setdefault(get_ident(), len(self.ranks))

    def gather(self, value: object) -> list[object]:
        self.values[self.rank] = value
        self.barrier.wait(10)
        values = list(self.values)
        self.barrier.wait(10)
        return values


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("max_tokens", [30, 200])
def test_a_choice_among_tokens_does_not_depend_on_the_split(size, max_tokens):
    batch, threads = masked_batch(), Threads(size)

    def choose(_: int) -> dict[tuple[int, int], bool]:
        threads.barrier.wait(10)
        share = Minibatch(batch, max_tokens=max_tokens, device=CPU, world=threads)
        share.set_advantages(np.arange(9.0))
        label(share)
        share.choose("chosen", choose_even, "reference_logprobs", "advantages")
        return in_share(share, "chosen")

    with ThreadPoolExecutor(size) as pool:
        parts = list(pool.map(choose, range(size)))

    assert {
        token: is_picked for part in parts for token, is_picked in part.items()
    } == {
        (place, int(slot)): slot % 2 == 0
        for place, covered in enumerate(batch.covered)
        for slot in np.flatnonzero(covered)
    }


def test_a_choice_follows_its_completions_into_another_cut():
    minibatch = cut(masked_batch(), 200)
    label(minibatch)
    minibatch.choose("kept", lambda numbers: numbers % 3 == 0, "reference_logprobs")
    before = in_share(minibatch, "kept")

    minibatch.cut(30)

    assert in_share(minibatch, "kept") == before
    assert set(before.values()) == {True, False}


def test_nothing_is_chosen_where_the_loss_covers_nothing():
    loss = LossConfig(mask_truncated=True)
    samples = [replace(s, end_reason="length") for s in make_batch(3).samples]
    minibatch = cut(Batch(tuple(samples), loss=loss), 200)

    minibatch.choose("kept", lambda _: pytest.fail("chosen"), "sampling_logprobs")

    assert [micro.kept.any().item() for micro in minibatch.micro_batches] == [False]


class Memory:
    """Work that fails on more tokens than there is room for."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.seen: list[int] = []

    def __call__(self, micro_batches: Sequence[MicroBatch]) -> list[int]:
        sizes = [micro.input_ids.numel() for micro in micro_batches]
        self.seen.append(max(sizes))
        if max(sizes) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")
        return sizes


def test_work_is_halved_until_it_fits():
    reported: list[tuple[int, str]] = []
    budget = MemoryBudget(120, on_halved=lambda *what: reported.append(what))
    memory = Memory(room=40)

    sizes = budget.run(cut(make_batch(9), 120), memory)

    assert max(sizes) <= 40
    assert [tokens for tokens, _ in reported] == [60, 30]
    assert "1 TiB" in reported[0][1]
    assert budget.tokens == 30


def test_a_budget_far_above_the_batch_is_halved_until_it_matters():
    reported: list[int] = []
    budget = MemoryBudget(8192, on_halved=lambda tokens, _: reported.append(tokens))
    memory = Memory(room=100)

    budget.run(cut(make_batch(9), 8192), memory)

    assert len(memory.seen) == len(reported) + 1 <= 3


def test_completions_that_are_alone_cannot_be_cut():
    budget = MemoryBudget(16, on_halved=lambda *_: None)
    memory = Memory(room=1)

    with pytest.raises(torch.OutOfMemoryError):
        budget.run(cut(make_batch(4), 1), memory)
    assert len(memory.seen) == 1


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def fail(_: object) -> None:
        raise RuntimeError("shapes do not match")

    budget = MemoryBudget(100, on_halved=lambda *_: None)

    with pytest.raises(RuntimeError, match="shapes"):
        budget.run(cut(make_batch(4), 100), fail)


def test_a_batch_cut_before_memory_ran_out_is_cut_again():
    budget = MemoryBudget(120, on_halved=lambda *_: None)
    second = cut(make_batch(9, seed=1), 120)
    budget.run(cut(make_batch(9), 120), Memory(room=40))
    memory = Memory(room=40)

    budget.run(second, memory)

    assert memory.seen == [max(memory.seen)]


def test_fitting_tokens_carry_over_to_phases_and_attempts():
    budget = MemoryBudget(120, on_halved=lambda *_: None)
    budget.run(cut(make_batch(9), 120), Memory(room=40))
    resumed = MemoryBudget(120, on_halved=lambda *_: None)

    resumed.load_state_dict(budget.state_dict())

    assert resumed.tokens == budget.tokens == 30
    resumed.begin_phase(500)
    assert resumed.tokens == 30
    resumed.begin_phase(20)
    assert resumed.tokens == 20
