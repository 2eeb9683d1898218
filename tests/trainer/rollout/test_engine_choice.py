"""Which engine "auto" takes, how large it is, and what follows where vLLM fails."""

import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    Mamba2Config,
    MiniMaxConfig,
    PreTrainedConfig,
    RecurrentGemmaConfig,
)

from tests.trainer.rollout.test_rollout import ids_of, requests_of
from tests.trainer.rollout.test_rollout_engines import SERVER, config_of
from tests.trainer.tiny import config_tree
from tests.trainer.vllm_models import stir
from trainer.config import RunConfig
from trainer.model.policy import Policy
from trainer.rollout import select, speeds
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.cache import make_cache
from trainer.rollout.engine import (
    LogprobsDiffer,
    Request,
    Sampled,
    SamplingParams,
    Slowed,
)
from trainer.rollout.prefetch import SnapshotEngine
from trainer.rollout.prefixes import PrefixStore
from trainer.rollout.select import (
    FallbackEngine,
    check_decoder,
    engine_name,
    make_engine,
    uses_own_decoder,
    why_not_vllm,
)
from trainer.rollout.server_engine import VllmServerEngine
from trainer.run.loop import record_speed
from trainer.run.state import task_digest
from trainer.sizes.memory import EngineSizes, engine_sizes, estimate
from trainer.stopping import Stopped

WARM = SamplingParams(max_new_tokens=20, temperature=1.0)


class Sampler:
    """vLLM as an engine sees it: a copy of the policy that is handed weights."""

    kind = name = "vLLM 0.32.0"
    max_length = 256
    swaps = False

    def __init__(self, policy: Policy) -> None:
        self._copy = policy.copied()
        self.off = 0.0  # nats that its log-probs are off
        self.fails_after: int | None = None  # completions
        self.num_sampled = 0
        self.is_closed = self.is_asleep = False
        self.takes_adapters = False

    def hold(self) -> None:
        pass

    def check_adapters(self, _layers: Iterable[str], *, rank: int) -> None:
        self.swaps = self.takes_adapters

    def parts(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Any]:
        yield list(weights)

    def add_weights(self, part: Any, *, is_adapters: bool) -> None:
        own = dict(self._copy.weights())
        with torch.no_grad():
            for name, weight in [] if is_adapters else part:
                own[name].copy_(weight)

    def load(self, _names: Sequence[str], *, rank: int, alpha: float) -> None:
        pass

    def sample(
        self,
        prompts: Sequence[Any],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        on_ended: Callable[[int, Sampled], None],
    ) -> None:
        self.is_asleep = False
        asked = [
            Request(token_ids=each.token_ids, seeds=(each.seed,)) for each in prompts
        ]
        engine = TransformersEngine(self._copy, max_batch_rows=64)
        for number, (one,) in enumerate(engine.sample(asked, params)):
            if number == self.fails_after:
                raise RuntimeError("CUDA error: out of luck\nmore of it")
            self.num_sampled += 1
            logprobs = tuple(value + self.off for value in one.logprobs)
            on_ended(number, Sampled(token_ids=one.token_ids, logprobs=logprobs))

    def rest(self) -> None:
        self.is_asleep = True

    def close(self) -> None:
        self.is_closed = True


class Started:
    """An engine of a faked vLLM, and its events."""

    def __init__(self, policy: Policy, *, is_replaced: bool = True) -> None:
        self.sampler: Any = Sampler(policy)
        self.reported: list[Slowed] = []
        self.at_rest = threading.Event()
        self.at_rest.set()
        own = lambda: TransformersEngine(policy, max_batch_rows=64)  # noqa: E731
        self.engine = FallbackEngine(
            policy,
            VllmServerEngine(policy, [self.sampler]),
            own=own if is_replaced else None,
            at_rest=self.at_rest,
            on_slowed=self.reported.append,
        )


@pytest.fixture
def vllm(policy) -> Started:
    return Started(policy)


@pytest.fixture
def installed(monkeypatch, tmp_path) -> None:
    """vLLM, on a machine where no run has finished."""
    monkeypatch.setattr(select, "find_spec", lambda _name: object())
    monkeypatch.setattr(select, "version", lambda _name: "0.32.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "H200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def large_policy(**changes: Any) -> Any:
    """One that vLLM samples on a GPU."""
    sizes = {"head_dim": 64} | changes.pop("sizes", {})
    config = SimpleNamespace(
        get_text_config=lambda: SimpleNamespace(**sizes),
    )
    facts = {
        "device": torch.device("cuda"),
        "num_parameters": 1_000_000_000,
        "num_positions": None,
        "model": SimpleNamespace(
            dtype=changes.pop("dtype", torch.bfloat16), config=config
        ),
    }
    return SimpleNamespace(**facts | changes)


@pytest.mark.usefixtures("installed")
def test_auto_is_vllm_for_a_large_model_on_a_gpu() -> None:
    longer = config_of(rollout={"max_new_tokens": 513})

    assert why_not_vllm(config_of(), large_policy()) == ""
    assert why_not_vllm(longer, large_policy(num_parameters=500_000_000)) == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("parts", "changes", "reason"),
    [
        ({}, {"device": torch.device("cpu")}, "no GPU"),
        ({}, {"dtype": torch.float32}, "float32"),
        ({"model": {"quantization": "4bit", "lora_rank": 4}}, {}, "4-bit"),
        ({"rollout": {"source": "start"}}, {}, "the policy"),
        ({"rollout": {"top_p": 0.9}}, {}, "top_p"),
        ({"rollout": {"temperature": 0.005}}, {}, "0.005"),
        ({}, {"num_parameters": 99_000_000}, "99,000,000"),
        ({"rollout": {"max_new_tokens": 512}}, {"num_parameters": 10**9 - 1}, "512"),
        ({}, {"sizes": {"head_dim": 16}}, "16"),
        (
            {"_": None},
            {"sizes": {"head_dim": None, "hidden_size": 64, "num_attention_heads": 4}},
            "16",
        ),
    ],
)
def test_auto_is_the_own_decoder_for_what_does_not_suit_vllm(
    parts, changes, reason
) -> None:
    config = config_of(**{name: value for name, value in parts.items() if value})

    assert reason in why_not_vllm(config, large_policy(**changes))


def note_runs(policy: Any, engine: str, rate: float, *, count: int = 1, **changes):
    """Of 16 completions a step, with 1,000 tokens together."""
    work = speeds.work_of(config_of(**changes), policy)
    for _ in range(count):
        speeds.note_speed(
            work, engine, num_tokens=50_000, seconds=50_000 / rate, num_steps=50
        )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("rates", "steps", "reason"),
    [
        # 300 steps of 1,000 tokens: 100 s less, 59 s less, and more
        ((1_000, 1_500), 300, ""),
        ((1_000, 1_240), 300, "1,240"),
        ((1_000, 900), 300, "900"),
        ((1_000, 1_500), 100, "1,500"),  # too few to make up for the start
    ],
)
def test_auto_goes_by_what_both_engines_sampled_here(rates, steps, reason):
    own, vllm = rates
    # of 1B parameters, which the rule gives to vLLM
    policy, longer = large_policy(), {"rollout": {"max_new_tokens": 600}}
    config = config_of(optim={"num_steps": steps}, **longer)
    note_runs(policy, "built-in decoder", 9 * own, **longer)  # of long ago
    note_runs(policy, "built-in decoder", own, count=5, **longer)
    assert why_not_vllm(config, policy) == ""  # no run of vLLM is recorded
    note_runs(policy, "vLLM 0.31.0", 1, count=5, **longer)
    note_runs(policy, "vLLM 0.32.0", vllm, **longer)

    found = why_not_vllm(config, policy)

    assert reason in found
    assert bool(found) is bool(reason)


@pytest.mark.usefixtures("installed")
def test_measured_speeds_count_for_work_of_the_same_size_only(monkeypatch, tmp_path):
    policy, small = large_policy(), large_policy(num_parameters=200_000_000)
    for engine, rate in (("built-in decoder", 9_000), ("vLLM 0.32.0", 1)):
        note_runs(policy, engine, rate)
    config = config_of()

    assert "9,000" in why_not_vllm(config, policy)
    assert "200,000,000" in why_not_vllm(config, small)
    longer = config_of(rollout={"max_new_tokens": 600})
    assert why_not_vllm(longer, policy) == ""
    with (tmp_path / "cohort" / "sampling.jsonl").open("a") as file:
        file.write('{"work": [\n')  # a line that was broken off
    note_runs(policy, "built-in decoder", 9_002)
    assert "9,001" in why_not_vllm(config, policy)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "H100")
    assert why_not_vllm(config, policy) == ""


@pytest.mark.usefixtures("installed")
def test_a_vllm_that_is_faster_samples_a_small_model():
    small = large_policy(num_parameters=200_000_000)
    note_runs(small, "built-in decoder", 1_000)
    note_runs(small, "vLLM 0.32.0", 5_000)
    config = config_of(optim={"num_steps": 1_000})

    assert why_not_vllm(config, small) == ""
    assert "head size" in why_not_vllm(
        config, large_policy(num_parameters=200_000_000, sizes={"head_dim": 16})
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("began_with", ["built-in decoder", "vLLM 0.31.0"])
def test_a_resumed_run_keeps_the_engine_that_auto_began_with(began_with):
    policy = large_policy()
    slower = "vLLM 0.32.0" if began_with != "built-in decoder" else "built-in decoder"
    for engine in ("built-in decoder", "vLLM 0.32.0"):
        note_runs(policy, engine, 1 if engine == slower else 9_000)
    config = config_of(optim={"num_steps": 1_000})

    found = why_not_vllm(config, policy, began_with=began_with)

    assert bool(found) is (began_with == "built-in decoder")
    assert bool(why_not_vllm(config, policy)) is not bool(found)


@pytest.mark.usefixtures("installed")
def test_several_processes_go_by_the_sizes():
    policy, config = large_policy(), config_of(rollout={"max_new_tokens": 600})
    note_runs(policy, "built-in decoder", 9_000, rollout={"max_new_tokens": 600})
    note_runs(policy, "vLLM 0.32.0", 1, rollout={"max_new_tokens": 600})

    assert "9,000" in why_not_vllm(config, policy)
    assert why_not_vllm(config, policy, is_alone=False) == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "line", ["3", "[]", '{"work": 1}', '{"rate": null}', '"x', b"\xff\xfe"]
)
def test_a_damaged_line_of_speeds_is_passed_over(line, tmp_path):
    policy = large_policy()
    path = tmp_path / "cohort" / "sampling.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((line if isinstance(line, bytes) else line.encode()) + b"\n")
    note_runs(policy, "built-in decoder", 9_000)

    assert speeds.read_speeds(speeds.work_of(config_of(), policy)) != {}


def test_a_run_that_sampled_nothing_notes_no_speed(tmp_path):
    speeds.note_speed(["work"], "own", num_tokens=0, seconds=0.0, num_steps=1)

    assert speeds.read_speeds(["work"]) == {}


def test_a_folder_that_cannot_be_written_ends_no_run(monkeypatch, tmp_path):
    (tmp_path / "cohort").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    speeds.note_speed(["work"], "own", num_tokens=1, seconds=1.0, num_steps=1)

    assert speeds.read_speeds(["work"]) == {}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("parts", "device", "processes", "engine", "is_noted"),
    [
        ({}, "cuda", 1, None, True),
        ({}, "cpu", 1, None, False),
        ({}, "cuda", 2, None, False),
        ({"rollout": {"source": "start"}}, "cuda", 1, None, False),
        ({}, "cuda", 1, "fallen back", False),
    ],
)
def test_a_finished_run_notes_its_own_engines_speed(
    parts, device, processes, engine, is_noted, vllm, policy
):
    policy = large_policy(device=torch.device(device))
    policy.whole = policy
    if engine:
        vllm.engine._vllm = None
    run: Any = SimpleNamespace(
        policy=policy, engine=vllm.engine, world=SimpleNamespace(size=processes)
    )
    config = config_of(**parts)
    # of the first step, which is not counted, and of two more
    state: Any = SimpleNamespace(
        config=config, sampled=[(9.0, 99.0), (100.0, 2.0), (300.0, 3.0)]
    )

    record_speed(run, state)

    found = speeds.read_speeds(speeds.work_of(config, policy))
    expected = {"vLLM 0.32.0": speeds.Speed(rate=80.0, step_tokens=200.0)}
    assert found == (expected if is_noted else {})


STATEFUL: list[PreTrainedConfig] = [
    Mamba2Config(),  # no keys and values
    MiniMaxConfig(),  # a cache of its own
    RecurrentGemmaConfig(),  # states in the model itself
]


@pytest.mark.parametrize("settings", STATEFUL)
def test_a_model_with_another_state_is_refused_before_its_weights_are_read(
    settings, tmp_path
):
    settings.save_pretrained(tmp_path)  # and no weights
    model = {"path": str(tmp_path)}
    trained_on_rows = {"source": "dataset", "group_size": 1}
    ones = {"advantage": {"credit": "ones"}, "evaluation": {"every_steps": 0}}

    with pytest.raises(ValueError, match="vllm_server"):
        check_decoder(config_of(model=model))

    check_decoder(config_of(model=model, rollout=SERVER))
    rows_only = config_of(
        model=model,
        rollout=trained_on_rows,
        loss={"surrogate": "reinforce"},
        **ones,
    )
    check_decoder(rows_only)


@pytest.mark.usefixtures("installed")
def test_a_later_phase_that_samples_a_part_of_the_vocabulary_decides_too() -> None:
    phases = [
        {"name": "one", "num_steps": 3},
        {"name": "two", "num_steps": 3, "changes": {"rollout": {"top_k": 20}}},
    ]
    tree = config_tree(Path("model"), Path("rows.jsonl")) | {"phases": phases}

    assert "top_k = 20" in why_not_vllm(RunConfig.model_validate(tree), large_policy())


def test_without_vllm_auto_is_the_own_decoder(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        select, "find_spec", lambda name: None if name == "vllm" else find(name)
    )

    assert "not installed" in why_not_vllm(config_of(), large_policy())


AHEAD = {
    "rollout": {"one_step_off": True},
    "loss": {"importance_correction": "token_truncate"},
}


@pytest.mark.parametrize(
    ("parts", "kind"), [({}, TransformersEngine), (AHEAD, SnapshotEngine)]
)
def test_on_a_cpu_auto_is_what_transformers_is(parts, kind, policy):
    engine = make_engine(config_of(**parts), policy)

    assert config_of().rollout.engine == "auto"
    assert type(engine) is kind
    assert (engine_name(engine), uses_own_decoder(engine)) == ("built-in decoder", True)


def test_a_batch_sampled_ahead_is_of_both_spellings_of_a_run(policy):
    prompts: Any = SimpleNamespace(digest="same")
    spelled = {"engine": "transformers", "cache_gib": 4.0, "sleep": False}

    assert task_digest(config_of(), prompts) == task_digest(
        config_of(rollout=spelled), prompts
    )
    assert task_digest(config_of(), prompts) != task_digest(
        config_of(rollout={"temperature": 0.5}), prompts
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("vLLM cannot run model: no such layer"),
        *(
            pytest.param(error, marks=pytest.mark.slow)
            for error in (
                torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
                AssertionError(),
            )
        ),
    ],
)
def test_a_vllm_that_does_not_start_gives_way(error, policy, monkeypatch):
    def refuse(self: object) -> None:
        raise error

    monkeypatch.setattr(select.VllmProcess, "hold", refuse)
    monkeypatch.setattr(select, "why_not_vllm", lambda *_, **__: "")
    reported: list[Slowed] = []

    engine = make_engine(config_of(), policy, on_slowed=reported.append)

    assert uses_own_decoder(engine)
    (slowed,) = reported
    assert (slowed.code, slowed.failed) == ("engine_fallback", "vLLM")
    assert type(error).__name__ in slowed.reason
    with pytest.raises(type(error)):
        make_engine(config_of(rollout={"engine": "vllm"}), policy)


def test_a_stop_does_not_count_as_failure_to_start(policy, monkeypatch):
    def stop(self: object) -> None:
        raise Stopped

    monkeypatch.setattr(select.VllmProcess, "hold", stop)
    monkeypatch.setattr(select, "why_not_vllm", lambda *_, **__: "")

    with pytest.raises(Stopped):
        make_engine(config_of(), policy)


def test_a_vllm_that_takes_no_weights_is_closed_and_gives_way(policy, monkeypatch):
    samplers: list[Any] = []

    def start(*_: object, **__: object) -> Sampler:
        sampler: Any = Sampler(policy)
        sampler.add_weights = lambda *_, **__: 1 / 0
        samplers.append(sampler)
        return sampler

    monkeypatch.setattr(select, "VllmProcess", start)
    monkeypatch.setattr(select, "why_not_vllm", lambda *_, **__: "")

    engine = make_engine(config_of(), policy)

    assert uses_own_decoder(engine)
    assert samplers[0].is_closed


@pytest.fixture
def alone(policy, monkeypatch) -> Any:
    """A vLLM that "auto" started for a model whose layers keep another state."""
    sampler = Sampler(policy)
    monkeypatch.setattr(select, "VllmProcess", lambda *_, **__: sampler)
    monkeypatch.setattr(select, "why_not_vllm", lambda *_, **__: "")
    monkeypatch.setattr(
        select, "make_cache", lambda _config: make_cache(Mamba2Config())
    )
    return sampler


def test_a_vllm_that_nothing_can_replace_is_kept_with_a_warning(alone, policy):
    reported: list[Slowed] = []
    engine = make_engine(config_of(), policy, on_slowed=reported.append)
    alone.off = 0.1

    engine.sample(requests_of(policy, 2), WARM)

    (slowed,) = reported
    assert slowed.way == "vLLM 0.32.0"
    assert "0.1 nats" in slowed.reason
    assert not uses_own_decoder(engine)


@pytest.mark.parametrize("off", [0.5, float("nan")])
def test_a_vllm_that_nothing_can_replace_is_refused_when_far_off(off, alone, policy):
    engine = make_engine(config_of(), policy)
    alone.off = off

    with pytest.raises(LogprobsDiffer, match=f"{off:.2g} nats"):
        engine.sample(requests_of(policy, 2), WARM)


def test_a_vllm_that_agrees_samples_to_the_end(policy, vllm):
    requests = requests_of(policy, 4)
    places: list[int] = []

    vllm.engine.sample(requests, WARM, on_group=lambda index, _: places.append(index))
    vllm.engine.rest()
    assert vllm.sampler.is_asleep
    stir(policy)
    vllm.engine.sync_weights()
    found = vllm.engine.sample(requests, WARM)

    own = TransformersEngine(policy, max_batch_rows=64)
    assert ids_of(found) == ids_of(own.sample(requests, WARM))
    assert places == [*range(len(requests))]
    assert vllm.reported == []
    assert engine_name(vllm.engine) == "vLLM 0.32.0"
    assert not uses_own_decoder(vllm.engine)
    # two batches, and a completion of each prompt twice to compare
    assert vllm.sampler.num_sampled == 2 * 4 * len(requests) + 2 * len(requests)


def test_the_own_decoder_rests_once_it_took_over(policy, vllm):
    vllm.sampler.off = 0.01
    vllm.engine.sample(requests_of(policy, 2), WARM)
    own = vllm.engine._own
    own.prefixes = PrefixStore()
    vllm.engine.sample(requests_of(policy, 2), WARM)
    assert own.prefixes

    vllm.engine.rest()

    assert not own.prefixes


@pytest.mark.parametrize("off", [0.01, float("nan")])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_vllm_that_disagrees_is_left(is_later, off, policy, vllm):
    requests = requests_of(policy, 4)
    if is_later:
        vllm.engine.sample(requests, WARM)
        vllm.sampler.off = off
        vllm.engine.sync_weights()
    vllm.sampler.off = off
    places: list[int] = []

    found = vllm.engine.sample(
        requests, WARM, on_group=lambda index, _: places.append(index)
    )

    own = TransformersEngine(policy, max_batch_rows=64).sample(requests, WARM)
    assert [[one.logprobs for one in group] for group in found] == [
        [one.logprobs for one in group] for group in own
    ]
    assert sorted(places) == [*range(len(requests))]
    (slowed,) = vllm.reported
    assert (slowed.failed, slowed.way) == ("vLLM", select.OWN_DECODER)
    assert f"{off:.2g} nats" in slowed.reason
    assert vllm.sampler.is_closed
    assert uses_own_decoder(vllm.engine)


def test_rounding_that_moves_the_policys_own_logits_as_far_is_borne(
    policy, vllm, monkeypatch
):
    monkeypatch.setattr(select, "max_logprob_gap", lambda _policy: -1.0)

    vllm.engine.sample(requests_of(policy, 2), WARM)

    (slowed,) = vllm.reported
    assert (slowed.failed, slowed.way) == (
        "The check of vLLM 0.32.0",
        "vLLM 0.32.0",
    )
    assert not uses_own_decoder(vllm.engine)


def test_a_requested_vllm_that_is_far_off_is_refused(policy):
    vllm = Started(policy, is_replaced=False)
    vllm.sampler.off = 0.5

    with pytest.raises(ValueError, match=r"0\.5 nats"):
        vllm.engine.sample(requests_of(policy, 2), WARM)


def test_a_requested_vllm_is_kept_with_a_warning(policy):
    vllm = Started(policy, is_replaced=False)
    vllm.sampler.off = 0.01

    vllm.engine.sample(requests_of(policy, 2), WARM)

    (slowed,) = vllm.reported
    assert slowed.code == "engine_fallback"
    assert "vLLM" in slowed.way
    vllm.sampler.fails_after = 3
    with pytest.raises(RuntimeError, match="out of luck"):
        vllm.engine.sample(requests_of(policy, 2), WARM)
    assert not vllm.sampler.is_closed


def test_the_own_decoder_samples_after_vllm_fails(policy, vllm):
    requests = requests_of(policy, 4)
    vllm.engine.sample(requests, WARM)
    vllm.sampler.fails_after = 6  # in the middle of the second group
    before = vllm.sampler.num_sampled
    groups: list[tuple[int, list[tuple[int, ...]]]] = []

    found = vllm.engine.sample(
        requests,
        WARM,
        on_group=lambda index, own: groups.append((index, [c.token_ids for c in own])),
    )

    own = TransformersEngine(policy, max_batch_rows=64).sample(requests, WARM)
    assert ids_of(found) == ids_of(own)  # by the same seeds
    assert sorted(groups) == list(enumerate(ids_of(own)))
    assert vllm.sampler.num_sampled - before == 6
    (slowed,) = vllm.reported
    assert slowed.reason == "RuntimeError: CUDA error: out of luck"
    assert vllm.sampler.is_closed
    stir(policy)
    vllm.engine.sync_weights()
    vllm.engine.rest()
    assert ids_of(vllm.engine.sample(requests, WARM)) == ids_of(
        TransformersEngine(policy, max_batch_rows=64).sample(requests, WARM)
    )
    assert len(vllm.reported) == 1
    vllm.engine.close()


@pytest.mark.parametrize("method", ["add_weights", "rest"])
def test_a_vllm_that_fails_between_two_steps_gives_way(method, policy, vllm):
    setattr(vllm.sampler, method, lambda *_, **__: 1 / 0)

    vllm.engine.rest()
    vllm.engine.sync_weights()

    (slowed,) = vllm.reported
    assert slowed.reason.startswith("ZeroDivisionError")
    assert len(vllm.engine.sample(requests_of(policy, 2), WARM)) > 1


def test_an_error_of_a_listener_is_not_vllms(policy, vllm):
    def listen(_place: int, _completions: object) -> None:
        raise RuntimeError("the reward workers are gone")

    with pytest.raises(RuntimeError, match="reward workers"):
        vllm.engine.sample(requests_of(policy, 2), WARM, on_group=listen)

    assert vllm.reported == []
    assert not uses_own_decoder(vllm.engine)


def test_while_the_policy_is_trained_nothing_is_compared_with_it(policy, vllm):
    vllm.sampler.off = 0.01
    vllm.at_rest.clear()
    vllm.engine.sample(requests_of(policy, 2), WARM)
    assert vllm.reported == []

    vllm.at_rest.set()
    vllm.engine.sync_weights()

    assert len(vllm.reported) == 1


def test_weights_are_taken_over_once_they_are_at_rest(policy, vllm):
    vllm.at_rest.clear()
    vllm.sampler.fails_after = 0
    asked = (requests_of(policy, 2), WARM)
    thread = threading.Thread(target=vllm.engine.sample, args=asked, daemon=True)

    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    vllm.at_rest.set()
    thread.join(60)

    assert not thread.is_alive()
    assert uses_own_decoder(vllm.engine)


GIB = 2**30


def sizes_of(*, wanted: float, weights: float, free: float, **rollout: Any) -> Any:
    """In GiB, on a GPU of 80."""
    loss = {"importance_correction": "token_truncate"}
    parts = {"loss": loss} if rollout.get("one_step_off") else {}
    found = engine_sizes(
        config_of(rollout=rollout, **parts),
        wanted_bytes=int(wanted * GIB),
        least_bytes=GIB // 4,
        weight_bytes=int(weights * GIB),
        free=free * GIB,
        gpu_bytes=80 * GIB,
        on_gpu=True,
    )
    return found.cache_bytes / GIB, found.sleeps


@pytest.mark.parametrize(
    ("wanted", "weights", "free", "rollout", "cache", "sleeps"),
    [
        (6, 3, 60, {}, 6, False),
        (40, 3, 63, {}, 30, True),  # half of what is free
        (6, 15, 40, {}, 6, True),  # 21 of 80 GiB are more than a quarter
        (6, 6, 2, {}, 0.25, False),  # one completion, without which it won't start
        (40, 3, 63, {"cache_gib": 8.0}, 8, False),
        (6, 3, 60, {"sleep": True}, 6, True),
        (40, 3, 63, {"sleep": False}, 30, False),
        (40, 3, 63, {"one_step_off": True}, 30, False),  # it samples during updates
    ],
)
def test_vllm_is_as_large_as_memory_allows(
    wanted, weights, free, rollout, cache, sleeps
):
    found = sizes_of(wanted=wanted, weights=weights, free=free, **rollout)

    assert found == (cache, sleeps)


def test_on_a_cpu_vllm_has_4_gib_at_most_and_never_sleeps():
    sizes = engine_sizes(
        config_of(rollout={"sleep": True}),
        wanted_bytes=6 * GIB,
        least_bytes=1,
        weight_bytes=1,
        free=None,
        gpu_bytes=None,
        on_gpu=False,
    )

    assert sizes == EngineSizes(cache_bytes=4 * GIB, sleeps=False)


LLAMA = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2_048,
    "intermediate_size": 8_192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
PART = {"prompts_per_step": 64, "group_size": 8, "max_new_tokens": 1_024}


def test_an_estimate_takes_auto_for_the_own_decoder():
    auto, own = (
        estimate(
            config_of(rollout=PART | engine), LLAMA, on_gpu=True, gpu_bytes=80 * GIB
        )
        for engine in ({}, {"engine": "transformers"})
    )

    assert auto == own
    assert auto.engine + auto.sleeping_engine == 0


def test_an_estimate_has_the_sizes_that_a_run_would_choose():
    config = config_of(rollout=PART | {"engine": "vllm"})

    large = estimate(config, LLAMA, on_gpu=True, gpu_bytes=160 * GIB)
    small = estimate(config, LLAMA, on_gpu=True, gpu_bytes=40 * GIB)
    unknown = estimate(config, LLAMA, on_gpu=True)

    assert large.engine > large.weights  # awake: its copy of the weights, and a cache
    assert small.engine == 0
    assert large.weights < small.sleeping_engine <= large.engine
    assert large.weights < unknown.sleeping_engine < small.sleeping_engine


def test_sizes_of_a_run_follow_the_gpus_free_memory(policy, monkeypatch):
    memory = SimpleNamespace(free_bytes=lambda: 60 * GIB, total_bytes=lambda: 80 * GIB)
    monkeypatch.setattr(select, "memory_of", lambda _device: memory)

    one, two = (
        select._settings(
            config_of(rollout={"max_batch_rows": rows}), policy, num_shards=1
        )
        for rows in (4, 8)
    )

    assert two.cache_gib == pytest.approx(2 * one.cache_gib)
    assert not one.sleeps
