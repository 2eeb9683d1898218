"""Keys and values of sampled sequences serve the requests that continue them."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.trainer.tiny import write_model
from tests.trainer.varlen import slow_kernel
from tests.trainer.vllm_models import stir
from trainer.config import ModelConfig
from trainer.model import attention
from trainer.model.policy import Policy, load_policy
from trainer.rollout import builtin, decoder, llama, prefixes
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import (
    Request,
    SamplingParams,
    Slowed,
    logprob_gap,
    max_logprob_gap,
)
from trainer.rollout.prefetch import SnapshotEngine
from trainer.rollout.prefixes import PrefixStore, cpu_bytes, cut_prefill
from trainer.types import Rollout

WARM = SamplingParams(max_new_tokens=24, temperature=0.9)
BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # of `tiny`'s 2 layers and 2 heads of 8 floats
NO_MEMORY = "CUDA out of memory. Tried to allocate 2 GiB."


def engine_of(policy: Policy, *, keeps: bool = True, rows: int = 64):
    engine = TransformersEngine(policy, max_batch_rows=rows)
    engine.check.is_due = False
    engine.prefixes = PrefixStore() if keeps else None
    return engine


def opening(num_prompts: int = 3, group: int = 3) -> list[Request]:
    chance = random.Random(5)
    return [
        Request(
            token_ids=tuple(chance.choices(range(2, 36), k=4 + 7 * index)),
            seeds=tuple(100 * index + k for k in range(group)),
        )
        for index in range(num_prompts)
    ]


def next_requests(
    requests: list[Request], groups: list[tuple[Rollout, ...]], chance: random.Random
) -> list[Request]:
    """What an episode asks next: all so far, and a reply of some tokens."""
    return [
        Request(
            token_ids=request.token_ids
            + completion.token_ids
            + tuple(chance.choices(range(2, 36), k=chance.randint(1, 9))),
            seeds=(seed + 7,),
            max_new_tokens=request.max_new_tokens and chance.randint(1, 20),
        )
        for request, group in zip(requests, groups, strict=True)
        for seed, completion in zip(request.seeds, group, strict=True)
    ]


def play(
    engine: TransformersEngine,
    requests: list[Request],
    *,
    turns: int = 3,
    params: SamplingParams = WARM,
    seed: int = 0,
) -> list[tuple[list[Request], list[tuple[Rollout, ...]]]]:
    """The requests and completions of each round."""
    chance, rounds = random.Random(seed), []
    for _ in range(turns):
        rounds.append((requests, engine.sample(requests, params)))
        requests = next_requests(*rounds[-1], chance)
    return rounds


def ids_of(rounds) -> list[list[tuple[int, ...]]]:
    return [[c.token_ids for group in groups for c in group] for _, groups in rounds]


@pytest.fixture
def computed(policy) -> list[int]:
    """The columns of each prefill."""
    counts: list[int] = []

    def note(_module, _args, options):
        counts.append(options["input_ids"].shape[1])

    policy.body.register_forward_pre_hook(note, with_kwargs=True)
    return counts


@pytest.fixture
def recorded(monkeypatch) -> None:
    """CUDA graphs without a GPU: steps are done each time instead of replayed."""

    def record(run):
        run()
        return run

    monkeypatch.setattr(decoder, "record", record)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("way", ["lean", "plain", "graph", "shared"])
def test_several_rounds_give_the_same_tokens_as_whole_prefills(
    way, packs, policy, monkeypatch, recorded
):
    monkeypatch.setattr(llama, "_MAX_PACKED_BYTES", 2**30 if packs else 0)
    monkeypatch.setattr(attention, "_kernel", lambda: partial(slow_kernel, []))
    monkeypatch.setattr(builtin, "_LEAST_SAVED_BYTES", 0)
    keeping, plain = engine_of(policy), engine_of(policy, keeps=False)
    keeping._ways = plain._ways = [way]

    rounds = play(keeping, opening())

    assert ids_of(rounds) == ids_of(play(plain, opening()))
    for requests, groups in rounds:
        gap = logprob_gap(policy, requests, groups, temperature=WARM.temperature)
        assert gap < max_logprob_gap(policy) / 10


def test_only_what_is_new_is_computed(policy, computed):
    policy.eos_ids = (999,)  # all completions have their full length
    requests = [
        Request(token_ids=tuple(range(2, 2 + length)), seeds=(length,))
        for length in (20, 9)
    ]

    engine = engine_of(policy)
    first = engine.sample(requests, WARM)
    continued = [
        Request(
            token_ids=(*request.token_ids, *completion.token_ids, *reply), seeds=(1,)
        )
        for request, (completion,), reply in zip(
            requests, first, [(5, 6, 7), (8, 9)], strict=True
        )
    ]
    engine.sample(continued, WARM)

    # the last token of a turn was sampled, and has no keys yet
    assert computed == [20, 1 + 3]


def test_requests_without_a_prefix_do_not_slow_those_with_one(policy, computed):
    policy.eos_ids = (999,)
    engine = engine_of(policy)
    start = Request(token_ids=tuple(range(2, 30)), seeds=(1,))
    ((completion,),) = engine.sample([start], WARM)
    continued = Request(token_ids=start.token_ids + completion.token_ids, seeds=(2,))
    other = Request(token_ids=tuple(range(30, 2, -1)) * 2, seeds=(3,))
    requests = [other, continued, replace(other, seeds=(4,))]

    found = engine.sample(requests, WARM)

    assert computed == [28, 1, 56]
    for request, (completion,) in zip(requests, found, strict=True):
        ((alone,),) = engine_of(policy).sample([request], WARM)
        assert completion.token_ids == alone.token_ids


@pytest.mark.parametrize(
    "params",
    [
        replace(WARM, stop=("1", "a+")),
        replace(WARM, repetition_penalty=1.3, top_k=9),
        replace(WARM, temperature=0.0),
        replace(WARM, max_new_tokens=1),
    ],
)
@pytest.mark.parametrize("every", [1, 16])
def test_rows_that_end_in_other_ways_are_continued_right(
    every, params, policy, monkeypatch
):
    monkeypatch.setattr(builtin, "_GPU_TOKENS_PER_LOOK", every)
    monkeypatch.setattr(builtin, "is_gpu", lambda _device: every > 1)
    requests = [replace(request, max_new_tokens=15) for request in opening()]

    rounds = play(engine_of(policy), requests, params=params)

    plain = play(engine_of(policy, keeps=False), requests, params=params)
    assert ids_of(rounds) == ids_of(plain)


@given(
    seed=st.integers(0, 2**20),
    num_prompts=st.integers(1, 4),
    group=st.integers(1, 4),
    rows=st.sampled_from([2, 5, 64]),
    num_tokens=st.sampled_from([0, 40, 150, 10**6]),
)
def test_any_conversation_is_the_same_with_little_room_or_much(
    seed, num_prompts, group, rows, num_tokens, shared_policy
):
    engine, max_bytes = (
        engine_of(shared_policy, rows=rows),
        num_tokens * BYTES_PER_TOKEN,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtin, "cpu_bytes", lambda: max_bytes)
        rounds = play(engine, opening(num_prompts, group), turns=4, seed=seed)

    plain = engine_of(shared_policy, keeps=False)
    assert ids_of(rounds) == ids_of(
        play(plain, opening(num_prompts, group), turns=4, seed=seed)
    )
    store = engine.prefixes
    assert store.num_bytes <= max_bytes
    assert store.num_bytes == sum(BYTES_PER_TOKEN * len(ids) for ids in store._states)


@pytest.fixture(scope="module")
def shared_policy(model_folder) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder), device="cpu"))


def test_an_engine_of_single_turns_keeps_nothing(policy, monkeypatch):
    monkeypatch.setattr(decoder.LlamaDecoder, "states_of", None)
    engine = TransformersEngine(policy, max_batch_rows=64)

    play(engine, opening())

    assert engine.prefixes is None


def states_of(num_tokens: int, value: float = 1.0):
    return [(torch.full((1, num_tokens, 4), value),) * 2]  # 32 bytes a token


def test_the_oldest_leave_a_store_that_is_full():
    store = PrefixStore(10 * 32)
    for token in range(3):
        store.put((token,) * 4, states_of(4, float(token)))

    assert (len(store), store.num_bytes) == (2, 8 * 32)
    assert (0,) * 4 not in store
    store.put((9,) * 11, states_of(11))
    assert (len(store), store.num_bytes) == (2, 8 * 32)
    store.resize(5 * 32)
    assert (len(store), store.num_bytes) == (1, 4 * 32)
    assert (2,) * 4 in store


def test_a_prompt_takes_the_longest_sequence_that_it_continues():
    store = PrefixStore(2**20)
    for ids in [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (2,)]:
        store.put(ids, states_of(len(ids), float(len(ids))))

    taken = store.take([(1, 2, 3), (1, 2, 3, 9), (1, 2, 4, 1), (1, 2, 3, 8), (7,)])

    assert [states[0][0].shape[1] if states else 0 for states in taken] == [
        *(2, 3, 3, 3, 0)
    ]
    assert set(store._states) == {(1,), (2,)}
    assert store.num_bytes == 2 * 32


def test_a_prefill_is_cut_into_parts_of_like_size():
    assert cut_prefill([7, 7, 7, 7, 7], max_tokens=15) == [[0, 1], [2, 3], [4]]
    assert cut_prefill([3, 50, 1, 2, 6], max_tokens=99) == [[2, 3], [0, 4], [1]]


@pytest.mark.parametrize("kind", [TransformersEngine, SnapshotEngine])
@pytest.mark.parametrize("drop", ["sync_weights", "rest"])
def test_prefixes_do_not_outlive_the_weights(drop, kind, policy):
    engine = kind(policy, max_batch_rows=64)
    engine.prefixes = PrefixStore()
    ((requests, groups),) = play(engine, opening(), turns=1)
    assert len(engine.prefixes) > 3

    getattr(engine, drop)()
    assert (len(engine.prefixes), engine.prefixes.num_bytes) == (0, 0)
    stir(policy)
    engine.sync_weights()

    continued = next_requests(requests, groups, random.Random(1))
    found = engine.sample(continued, WARM)
    assert logprob_gap(policy, continued, found, temperature=0.9) < 1e-5


def test_a_snapshot_keeps_nothing_on_a_gpu(policy, monkeypatch):
    engine = SnapshotEngine(policy, max_batch_rows=64)
    engine.prefixes = PrefixStore(2**20)
    monkeypatch.setattr(builtin, "memory_of", lambda _device: object())

    play(engine, opening(), turns=2)

    assert (engine.prefixes.max_bytes, len(engine.prefixes)) == (0, 0)


class Memory:
    """A GPU's: what is free beside the prefixes."""

    def __init__(self, engine: TransformersEngine, num_bytes: int) -> None:
        self._engine, self._num_bytes = engine, num_bytes

    def free_bytes(self, *, enough: float) -> int:
        store = self._engine.prefixes
        return self._num_bytes - (store.num_bytes if store else 0)


@pytest.mark.parametrize(("num_bytes", "fits"), [(2**16, False), (2**20, True)])
def test_prefixes_have_what_a_batch_leaves_of_a_gpus_memory(
    num_bytes, fits, policy, monkeypatch
):
    plain, engine = engine_of(policy, keeps=False), engine_of(policy)
    requests = opening()
    row_bytes = 1.1 * BYTES_PER_TOKEN * (18 + 24) + 20 * len(policy.head.weight)

    def num_rows(engine: TransformersEngine) -> int:
        memory = Memory(engine, num_bytes)
        monkeypatch.setattr(builtin, "memory_of", lambda _device: memory)
        return engine._fitting_rows(requests, WARM)

    for _ in range(2):  # the second time some are kept
        most = num_rows(plain)
        rows = num_rows(engine)
        assert rows == min(9, most)
        assert (rows == 9) is fits
        left = 0.8 * num_bytes - rows * row_bytes
        assert engine.prefixes.max_bytes == pytest.approx(left, abs=1)
        engine.sample(requests, WARM)
        assert engine.prefixes.num_bytes <= engine.prefixes.max_bytes
    assert bool(engine.prefixes) is fits


def test_prefixes_make_room_before_a_batch_gets_smaller(policy, monkeypatch):
    reported: list[Slowed] = []
    engine = engine_of(policy)
    engine.on_slowed = reported.append
    ((requests, groups),) = play(engine, opening(), turns=1)
    # one of these rows continues nothing that is kept, so others stay in the store
    continued = next_requests(requests, groups, random.Random(0))[1:]
    expected = engine_of(policy, keeps=False).sample(continued, WARM)
    draw, fails = decoder.draw_tokens, [True]

    def drawn(*args, **options):
        if fails:
            fails.pop()
            raise torch.OutOfMemoryError(NO_MEMORY)
        return draw(*args, **options)

    monkeypatch.setattr(decoder, "draw_tokens", drawn)

    found = engine.sample(continued, WARM)

    assert [[c.token_ids for c in group] for group in found] == [
        [c.token_ids for c in group] for group in expected
    ]
    assert engine.prefixes is None
    (slowed,) = reported
    assert (slowed.code, slowed.reason) == ("engine_fallback", NO_MEMORY)
    assert engine._max_batch_rows == 64


def test_a_cpus_share_is_that_of_its_container(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(prefixes, "_CONTAINER_LIMIT", limit)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    whole = cpu_bytes()
    limit.write_text("max\n")
    assert cpu_bytes() == whole > 2**20

    limit.write_text(f"{2**20}\n")

    assert cpu_bytes() == 2**20 // 8 // 2


def test_models_with_a_window_prefill(tmp_path):
    folder = write_model(
        tmp_path / "window",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    policy = load_policy(ModelConfig(path=str(folder), device="cpu"))
    engine = engine_of(policy)

    rounds = play(engine, opening())

    assert len(engine.prefixes) == 0
    assert ids_of(rounds) == ids_of(play(engine_of(policy, keeps=False), opening()))


def test_a_model_that_is_not_like_llama_continues_what_is_kept(
    tmp_path, model_folder: Path
):
    config = GPTNeoXConfig(
        vocab_size=37,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    settings = ModelConfig(path=str(tmp_path), device="cpu")
    policy = load_policy(settings, tokenizer_path=str(model_folder))
    engine = engine_of(policy)

    rounds = play(engine, opening())

    assert len(engine.prefixes) > 3
    assert ids_of(rounds) == ids_of(play(engine_of(policy, keeps=False), opening()))
    for requests, groups in rounds:
        assert logprob_gap(policy, requests, groups, temperature=0.9) < 1e-5
