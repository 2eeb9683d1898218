"""vLLM split over two processes: every one of them gets the policy's weights."""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.vllm_models import (
    CLOSE,
    cpu_policy,
    ids_of,
    largest_gap,
    requests_of,
    stir,
    write_wide_model,
)
from tests.trainer.waiting import wait_until
from trainer.model.loading import AdapterWeights
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams
from trainer.rollout.server_engine import VllmServerEngine
from trainer.rollout.vllm import SamplerSettings
from trainer.rollout.vllm_worker import VllmSampler
from trainer.rollout.wire import in_parts

# warnings are vLLM's own
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

GREEDY = SamplingParams(max_new_tokens=20, temperature=0.0)
WARM = SamplingParams(max_new_tokens=20, temperature=0.7)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("wide") / "model")


@pytest.fixture(scope="module")
def sampler(wide_folder) -> Iterator[VllmSampler]:
    sampler = VllmSampler(
        SamplerSettings(
            model=str(wide_folder),
            max_length=256,
            max_rows=64,
            cache_gib=0.125,
            lora_rank=5,
            tensor_parallel_size=2,
        )
    )
    yield sampler
    sampler.close()


@pytest.fixture
def policy(wide_folder) -> Policy:
    return cpu_policy(wide_folder)


class Beside:
    """Asks a sampler in this process, whose workers are to be seen."""

    name = kind = ""
    max_length = 256
    swaps = False

    def __init__(self, sampler: VllmSampler) -> None:
        self._sampler = sampler
        self._adapters: list[tuple[str, torch.Tensor]] = []
        self.sample = sampler.sample

    def hold(self) -> None:
        pass

    def check_adapters(self, layers: Iterable[str], *, rank: int) -> None:
        self.swaps = self._sampler.can_take(layers)

    def parts(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Any]:
        return in_parts(weights, num_bytes=2**20)

    def add_weights(self, part: Any, *, is_adapters: bool) -> None:
        if is_adapters:
            self._adapters += part
        else:
            self._sampler.take_weights(part)

    def load(self, names: Sequence[str], *, rank: int, alpha: float) -> None:
        if rank:
            tensors, self._adapters = tuple(self._adapters), []
            self._sampler.load_adapters(
                AdapterWeights(tensors=tensors, rank=rank, alpha=alpha)
            )
        else:
            self._sampler.finish_weights()

    def close(self) -> None:
        pass


def engine_of(policy: Policy, sampler: VllmSampler) -> VllmServerEngine:
    return VllmServerEngine(policy, [Beside(sampler)])


def pid_of(worker: Any) -> int:
    return os.getpid()


def tell(sampler: VllmSampler, act: Any, *args: Any) -> list[Any]:
    """Have each worker call a function with itself."""
    return sampler._llm.collective_rpc(act, args=args)


def test_it_samples_what_one_process_would(policy, sampler):
    requests = requests_of(policy, 2)
    own = TransformersEngine(policy, max_batch_rows=64)

    found = engine_of(policy, sampler).sample(requests, GREEDY)

    pids = tell(sampler, pid_of)
    assert len({*pids, os.getpid()}) == 3
    assert ids_of(found) == ids_of(own.sample(requests, GREEDY))
    assert largest_gap(policy, requests, found, temperature=1.0) < CLOSE


def test_after_an_update_every_process_has_the_new_policy(policy, sampler, monkeypatch):
    # so small that each weight goes in a part of its own, and its name with it
    monkeypatch.setattr("trainer.rollout.vllm_worker._PART_BYTES", 1)
    requests = requests_of(policy, 4)
    engine = engine_of(policy, sampler)
    before = engine.sample(requests, WARM)

    for update in range(2):
        stir(policy, seed=update)
        assert largest_gap(policy, requests, before, temperature=0.7) > 0.1
        engine.sync_weights()
        after = engine.sample(requests, WARM)

        assert largest_gap(policy, requests, after, temperature=0.7) < CLOSE
        assert ids_of(after) != ids_of(before)


def be_deaf(worker: Any, rank: int) -> None:
    """Let one process take no weights, though it says that it did."""
    inner = worker.worker

    def names_only(weights: list[tuple[str, torch.Tensor]]) -> None:
        inner._names_taken = None

    if inner.rank == rank:
        inner.take_weights = names_only


def receive(worker: Any) -> None:
    vars(worker.worker).pop("take_weights", None)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_left_out_shows(policy, sampler, rank):
    """What `largest_gap` says above would say so."""
    requests = requests_of(policy, 4)
    engine = engine_of(policy, sampler)
    stir(policy)
    tell(sampler, be_deaf, rank)

    engine.sync_weights()

    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) > 0.1
    tell(sampler, receive)


def test_weights_that_did_not_come_are_named(policy, sampler):
    name = "model.layers.0.mlp.down_proj.weight"
    weights = [(n, w) for n, w in policy.weights() if n != name]

    with pytest.raises(RuntimeError, match=f"Worker 0 .* {name}"):
        sampler.load_weights(weights)


def test_keys_and_values_of_the_old_policy_are_forgotten(policy, sampler):
    # longer than a block of the cache, which is 128 tokens on a CPU
    requests = requests_of(policy, 3, ["123+456=" * 20])
    engine = engine_of(policy, sampler)
    engine.sample(requests, WARM)
    stir(policy)

    engine.sync_weights()

    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE


def test_every_process_gets_its_part_of_the_adapters(wide_folder, sampler):
    policy = cpu_policy(wide_folder, lora_rank=5)
    engine = engine_of(policy, sampler)
    requests = requests_of(policy, 4)
    before = engine.sample(requests, WARM)
    stir(policy)

    engine.sync_weights()

    assert engine._servers[0].swaps
    after = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, after, temperature=0.7) < CLOSE
    assert ids_of(after) != ids_of(before)


def test_an_interrupt_is_left_to_the_trainer(policy, sampler):
    engine = engine_of(policy, sampler)
    pids = tell(sampler, pid_of)

    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)

    assert engine.sample(requests_of(policy, 1), GREEDY)
    assert tell(sampler, pid_of) == pids


def test_a_process_that_dies_ends_the_sampling(policy, sampler, monkeypatch):
    """The last of this file: the others go with it."""
    monkeypatch.setenv("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "1")
    engine = engine_of(policy, sampler)
    pids = tell(sampler, pid_of)

    os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"exited with .*-9"):
        engine.sample(requests_of(policy, 1), WARM)
    wait_until(lambda: not {each.pid for each in active_children()} & {*pids})
