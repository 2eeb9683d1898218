"""Models whose layers keep recurrent or convolutional states are sampled exactly."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.architectures import Plain, write_architecture
from tests.trainer.rollout.test_prefixes import engine_of, opening, play
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from tests.trainer.tiny_architectures import ARCHITECTURES
from trainer.config import ModelConfig
from trainer.model.policy import Policy, load_policy
from trainer.rollout import builtin
from trainer.rollout.decoder import AnyDecoder
from trainer.rollout.engine import Request, SamplingParams, logprob_gap
from trainer.types import Rollout

NAMES = (
    *("Qwen3.5", "Qwen3-Next", "LFM2", "LFM3", "Granite 4", "Nemotron-H", "Falcon-H1"),
)
WARM = SamplingParams(max_new_tokens=24, temperature=1.0)


def saved(name: str, folder: Path) -> Path:
    write_architecture(ARCHITECTURES[name], folder)
    return folder


def loaded(folder: Path) -> Policy:
    return load_policy(ModelConfig(path=str(folder), device="cpu", dtype="float32"))


def plain_gap(
    folder: Path, requests: list[Request], groups: list[tuple[Rollout, ...]]
) -> float:
    """The largest difference from a full pass of transformers' own, text by text."""
    plain = Plain(folder)
    with torch.no_grad():
        return max(
            (torch.tensor(each.logprobs) - plain.logprobs(request.token_ids, ids)[0])
            .abs()
            .max()
            .item()
            for request, group in zip(requests, groups, strict=True)
            for each in group
            if (ids := each.token_ids)
        )


@pytest.mark.parametrize("name", NAMES)
def test_sampling_updates_and_a_full_pass_agree(name, tmp_path, monkeypatch):
    folder = saved(name, tmp_path)
    policy = loaded(folder)
    policy.eos_ids = (999,)
    left: list[int] = []
    keep = AnyDecoder.keep
    monkeypatch.setattr(
        AnyDecoder, "keep", lambda own, rows: (left.append(len(rows)), keep(own, rows))
    )
    limits = (3, None, 9, 15, None)  # rows leave in the middle of groups' batches
    requests = [
        replace(request, max_new_tokens=limit)
        for request, limit in zip(opening(5), limits, strict=True)
    ]
    requests += [
        replace(requests[1], seeds=(7,)),  # one of its length
        Request(token_ids=(5,), seeds=(8,)),  # shorter than a convolution
        Request(token_ids=tuple(range(2, 34)) * 3, seeds=(9,)),  # several chunks
    ]

    groups = engine_of(policy).sample(requests, WARM)

    assert left == [15, 12, 9]
    assert [len(group[0].token_ids) for group in groups] == [*(3, 24, 9, 15), *[24] * 4]
    assert plain_gap(folder, requests, groups) < 2e-5
    assert logprob_gap(policy, requests, groups, temperature=1.0) < 1e-5
    few = engine_of(policy, rows=4).sample(requests, WARM)
    assert [[each.token_ids for each in group] for group in few] == [
        [each.token_ids for each in group] for group in groups
    ]


@pytest.mark.parametrize("name", ["Qwen3.5", "Falcon-H1"])
def test_each_turn_computes_all_before_it(name, tmp_path):
    folder = saved(name, tmp_path)
    engine = engine_of(loaded(folder))

    rounds = play(engine, opening(), params=WARM)

    assert len(engine.prefixes) == 0
    for requests, groups in rounds:
        assert plain_gap(folder, requests, groups) < 1e-5


@pytest.mark.parametrize("checkpointing", [False, True])
def test_rows_that_fit_a_gpu_have_room_for_their_states(
    checkpointing, tmp_path, monkeypatch
):
    policy = loaded(saved("Falcon-H1", tmp_path))
    policy.set_checkpointing(on=checkpointing)
    engine = engine_of(policy, keeps=False)
    requests = [Request(token_ids=(5,) * 10, seeds=tuple(range(64)))]
    token = 2 * 2 * 2 * 16 * 4  # 2 layers, keys and values of 2 heads of 16 floats
    # of a layer 4 inputs of its convolution, 64 + 2 · 8 wide, and 4 heads of 16 · 8
    states = 2 * 4 * (4 * 80 + 4 * 16 * 8)
    row = 1.1 * token * (10 + 24) + states + 20 * 40
    memory = SimpleNamespace(free_bytes=lambda enough: 10.5 * row / 0.8)
    monkeypatch.setattr(builtin, "memory_of", lambda _device: memory)

    assert engine._row_bytes == (token, states)
    assert engine._fitting_rows(requests, WARM) == 10


# up to three turns, unless one is cut off
REPLY = """
def reply(row, seed, said):
    return {"text": "a" * len(said), "done": len(said) == 3, "episode_reward": 0.5}
"""


@pytest.mark.parametrize(
    "environment", [{}, {"kind": "python", "source": REPLY, "max_tokens": 200}]
)
def test_a_run_trains_one(environment, tmp_path, rows_path):
    tree = config_tree(
        saved("Qwen3.5", tmp_path / "model"),
        rows_path,
        data={"max_prompt_tokens": 64},
        environment=environment,
        loss={"kl_coef": 0.01},
        optim={"num_steps": 2},
        evaluation={"every_steps": 2},
    )
    out = tmp_path / "out"

    done = run_trainer("run", write_config(tmp_path, tree), "--out", out)

    assert done.returncode == 0, done.stderr
    events = read_events(out / "events.jsonl")
    first, second = (step["metrics"] for step in only(events, "step_finished"))
    for metrics in (first, second):
        assert metrics["mismatch/mean"] < 1e-5
        assert (metrics.get("episode/num_turns", 1) > 1) == bool(environment)
    assert second["kl/mean"] > 0
    assert only(events, "warned") == []
