"""Which engine a configuration asks for, and what it must not ask of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig

from tests.trainer.architectures import write_architecture
from tests.trainer.tiny import config_tree
from tests.trainer.tiny_architectures import ARCHITECTURES
from trainer.config import ModelConfig, RunConfig
from trainer.model.loading import in_checkpoint_form
from trainer.model.policy import load_policy
from trainer.rollout import vllm
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams, SeededPrompt
from trainer.rollout.select import make_engine
from trainer.rollout.vllm import SamplerSettings, VllmProcess, _environment
from trainer.rollout.vllm_worker import VllmSampler

SERVER = {
    "engine": "vllm_server",
    "url": "http://127.0.0.1:8700",
    "token_file": "token",
}


def config_of(**parts: Any) -> RunConfig:
    tree = config_tree(Path("model"), Path("rows.jsonl"), **parts)
    return RunConfig.model_validate(tree)


def test_the_policy_samples_itself_unless_another_engine_is_requested(policy):
    assert isinstance(make_engine(config_of(), policy), TransformersEngine)


@pytest.mark.parametrize(
    "rollout", [{"engine": "vllm", "cache_gib": 0.5, "sleep": True}, SERVER]
)
def test_each_engine_can_be_configured(rollout):
    assert config_of(rollout=rollout).rollout.engine == rollout["engine"]


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({"engine": "vllm_server", "token_file": "t"}, "requires rollout.url"),
        ({"url": "http://127.0.0.1:8700"}, "requires rollout.url"),
        (SERVER | {"engine": "vllm"}, "requires rollout.url"),
        (SERVER | {"token_file": None}, r"Set rollout\.token_file"),
        ({"engine": "vllm", "top_p": 0.9}, "top_[pk] = "),
        ({"engine": "vllm", "min_p": 0.1}, "min_p = 0.1"),
        ({"engine": "vllm", "repetition_penalty": 1.1}, "repetition_penalty = 1.1"),
        (SERVER | {"top_k": 50}, "top_[pk] = "),
        ({"engine": "vllm", "temperature": 0.005}, "temperature of 0.005"),
        ({"engine": "vllm", "cache_gib": 0}, "greater than 0"),
        ({"engine": "vllm", "tensor_parallel_size": 0}, "greater than or equal to 1"),
        (SERVER | {"url": "http://a:1, http://a:1"}, "a server twice"),
        (SERVER | {"url": " , "}, "requires rollout.url"),
    ],
)
def test_settings_an_engine_lacks_are_refused(rollout, words):
    with pytest.raises(ValueError, match=words):
        config_of(rollout=rollout)


def test_evaluation_may_take_the_likeliest_token_but_be_no_colder_than_vllm():
    config_of(rollout={"engine": "vllm"}, evaluation={"temperature": 0})

    with pytest.raises(ValueError, match=r"temperature of 0\.001"):
        config_of(rollout={"engine": "vllm"}, evaluation={"temperature": 0.001})


def test_several_processes_split_no_vllm_of_their_own():
    config_of(rollout={"engine": "vllm"}, distributed={"num_processes": 2})

    with pytest.raises(ValueError, match="tensor_parallel_size"):
        config_of(
            rollout={"engine": "vllm", "tensor_parallel_size": 2},
            distributed={"num_processes": 2},
        )


ANOTHER = {
    **SERVER,
    "engine": "vllm",
    "cache_gib": 1.0,
    "sleep": True,
    "tensor_parallel_size": 2,
}


@pytest.mark.parametrize("name", list(ANOTHER))
def test_a_phase_cannot_change_the_engine(name):
    changed = ANOTHER[name]
    phases = [
        {"name": "one", "num_steps": 3},
        {"name": "two", "num_steps": 3, "changes": {"rollout": {name: changed}}},
    ]
    tree = config_tree(Path("model"), Path("rows.jsonl"))

    with pytest.raises(ValueError, match=f"cannot change rollout.{name}"):
        RunConfig.model_validate(tree | {"phases": phases})


def test_a_missing_vllm_is_reported(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(ValueError, match="import vLLM") as error:
        make_engine(config_of(rollout={"engine": "vllm"}), policy)

    assert "rollout.engine" in str(error.value)


class Llm:
    """A vLLM that has a GPU, and writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.missing: list[str] = []
        self._num_sent = 0
        self._waiting: list[Any] = []

    def enqueue(self, prompts: list[Any], *_: Any, **options: Any) -> list[str]:
        self.asked.append("generate")
        first, self._num_sent = self._num_sent, self._num_sent + len(prompts)
        numbers = range(first, self._num_sent)
        self._waiting = [
            SimpleNamespace(
                request_id=str(number),
                outputs=[
                    SimpleNamespace(
                        token_ids=[number],
                        logprobs=SimpleNamespace(
                            token_ids=[number], logprobs=[-float(number)]
                        ),
                    )
                ],
            )
            for number in numbers
        ]
        return [f"{number}-a1b2" for number in numbers]

    @property
    def llm_engine(self) -> Llm:
        return self

    def has_unfinished_requests(self) -> bool:
        return bool(self._waiting)

    def step(self) -> list[Any]:
        """The last one ends first."""
        return [self._waiting.pop()]

    def sleep(self, level: int) -> None:
        self.asked.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.asked.append(f"wake {' '.join(tags)}")

    def collective_rpc(self, method: str, **_: Any) -> list[Any]:
        self.asked.append(method)
        return [self.missing] if method == "finish_weights" else [None]

    def reset_prefix_cache(self) -> bool:
        self.asked.append("reset")
        return True


@pytest.fixture
def llm(monkeypatch) -> Llm:
    llm = Llm()
    monkeypatch.setattr(
        VllmSampler, "_start", lambda self, settings: setattr(self, "_vllm", Vllm)
    )
    monkeypatch.setattr(VllmSampler, "_sample_once", lambda self: None)
    monkeypatch.setattr("trainer.rollout.vllm_worker.import_vllm", lambda: Vllm)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.current_stream", lambda: None)
    return llm


class Vllm:
    SamplingParams = dict


def sampler_of(llm: Llm, **settings: Any) -> VllmSampler:
    sampler = VllmSampler(
        SamplerSettings(
            model="model", max_length=64, max_rows=4, cache_gib=1, **settings
        )
    )
    sampler._llm = llm
    return sampler


WARM = SamplingParams(max_new_tokens=3, temperature=1.0)
PROMPT = SeededPrompt(token_ids=(1, 2), seed=2**64 - 1)


def test_it_sleeps_between_sampling_and_the_weights_of_the_update(llm):
    sampler = sampler_of(llm, sleeps=True)

    for _ in range(2):
        sampler.sample([PROMPT], WARM, eos_ids=())
    for _ in range(2):
        sampler.sleep(keeps_weights=False)
    with pytest.raises(AssertionError, match="weights"):
        sampler.sample([PROMPT], WARM, eos_ids=())
    sampler.load_weights([])
    sampler.sample([PROMPT], WARM, eos_ids=())

    assert llm.asked == [
        *("generate", "generate", "sleep 2"),
        *("wake weights", "begin_weights", "finish_weights", "reset"),
        *("wake kv_cache", "generate"),
    ]


def test_weights_that_adapters_stand_beside_wait_in_main_memory(llm):
    sampler = sampler_of(llm, sleeps=True)

    sampler.sleep(keeps_weights=True)
    sampler.sample([PROMPT], WARM, eos_ids=())

    assert llm.asked == ["sleep 1", "wake weights", "wake kv_cache", "generate"]


def test_each_completion_is_reported_when_it_ends(llm):
    sampler, reported = sampler_of(llm), []

    for _ in range(2):
        reported.clear()
        found = sampler.sample(
            [PROMPT] * 3,
            WARM,
            eos_ids=(),
            on_ended=lambda number, sampled: reported.append((number, sampled)),
        )

    assert reported == [(2, found[2]), (1, found[1]), (0, found[0])]
    assert [sampled.token_ids for sampled in found] == [(3,), (4,), (5,)]
    assert [sampled.logprobs for sampled in found] == [(-3.0,), (-4.0,), (-5.0,)]


def test_it_stays_awake_unless_asked_to_sleep(llm):
    sampler = sampler_of(llm)

    sampler.sleep(keeps_weights=True)
    sampler.sample([PROMPT], WARM, eos_ids=())

    assert llm.asked == ["generate"]


def test_old_keys_and_values_that_cannot_be_forgotten_end_the_run(llm):
    sampler = sampler_of(llm)
    llm.reset_prefix_cache = lambda: False

    with pytest.raises(RuntimeError, match="prefix cache"):
        sampler.load_weights([])


def test_weights_that_a_worker_lacks_end_the_run(llm):
    llm.missing = ["lm_head.weight", "model.norm.weight"]

    with pytest.raises(RuntimeError, match="receive 2 weights"):
        sampler_of(llm).load_weights([])


def test_a_model_is_not_split_over_more_gpus_than_there_are(llm):
    sampler_of(llm, tensor_parallel_size=1)

    with pytest.raises(ValueError, match=r"3 GPUs.* 2"):
        sampler_of(llm, tensor_parallel_size=3)


def test_another_thread_takes_over_the_stream_that_vllm_was_started_on(
    llm, monkeypatch
):
    streams: list[str] = []
    monkeypatch.setattr("torch.cuda.current_stream", lambda: "vLLM's")
    monkeypatch.setattr("torch.cuda.set_stream", streams.append)
    sampler = sampler_of(llm)

    sampler.sample([PROMPT], WARM, eos_ids=())
    sampler.load_weights([])

    assert streams == ["vLLM's"] * 2


def test_a_mixture_of_experts_is_not_sampled_by_vllm_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.rollout.vllm_worker.import_vllm", lambda: Vllm)
    Qwen3MoeConfig(num_experts=4).save_pretrained(tmp_path)
    settings = SamplerSettings(
        model=str(tmp_path), max_length=64, max_rows=4, cache_gib=1
    )

    with pytest.raises(ValueError, match="4 experts"):
        VllmSampler(settings)


@pytest.mark.parametrize("name", ["Qwen3", "Mixtral", "Qwen3 MoE", "GPT-OSS"])
def test_vllm_receives_weights_as_the_checkpoint_has_them(name, tmp_path):
    write_architecture(ARCHITECTURES[name], tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    policy = load_policy(ModelConfig(path=str(tmp_path), device="cpu"))

    sent = dict(in_checkpoint_form(policy.model, policy.weights()))

    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[each], saved[each]) for each in saved)


def test_a_closed_vllm_is_referred_to_no_more(llm):
    sampler: Any = sampler_of(llm)
    ended: list[bool] = []
    core: Any = llm
    core.engine_core = SimpleNamespace(shutdown=lambda: ended.append(True))

    sampler.close()
    sampler.close()

    assert ended == [True]
    assert sampler._llm is None


def process_of(**settings: Any) -> VllmProcess:
    given = SamplerSettings(
        model="model", max_length=64, max_rows=4, cache_gib=1, **settings
    )
    return VllmProcess(given, torch.device("cuda", 3), restarts=True)


@pytest.mark.parametrize(
    ("seen", "num_gpus", "expected"),
    [("", 1, "1"), ("4,GPU-5,6", 1, "GPU-5"), ("4,5", 2, "4,5")],
)
def test_vllm_sees_the_gpu_of_its_process_alone(seen, num_gpus, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    settings = process_of(tensor_parallel_size=num_gpus)._settings

    environment = _environment(settings, torch.device("cuda", 1))

    assert environment["CUDA_VISIBLE_DEVICES"] == expected
    assert environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:False"
    assert not {"RANK", "PYTORCH_CUDA_ALLOC_CONF"} & {*environment}


def test_memory_that_the_gpu_does_not_lend_is_the_machines(monkeypatch, capsys):
    process: Any = process_of()
    process._memory = os.memfd_create("weights")
    asked: list[Any] = []
    opened: list[Any] = []

    def ask(kind: str, message: Any) -> list[Any] | None:
        asked.append(message)
        return [*range(10)] if message[1] else None

    def refuse(*handle: Any) -> None:
        opened.append(handle)
        raise RuntimeError("CUDA error: invalid device context\nmore of it")

    process._ask = ask
    monkeypatch.setattr(vllm, "rebuild_cuda_tensor", refuse)

    rooms = [process._make_room(100) for _ in range(2)]

    assert [len(room) for room in rooms] == [100, 100]
    assert asked == [(100, True), (100, False), (100, False)]
    assert opened == [(*range(6), 3, *range(7, 10))]
    assert "invalid device context" in capsys.readouterr().out
    os.close(process._memory)
