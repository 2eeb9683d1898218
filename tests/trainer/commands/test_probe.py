"""A probe tells what a run would learn from, before there is one."""

import itertools
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import score_completion
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.commands.probe import _Lines, config_of_probe
from trainer.config import RunConfig
from trainer.evaluation import chance_of_signal
from trainer.rewards.rule import Sample

STARTERS = Path(__file__).parents[3] / "trainer" / "starter"
RIGHT_OR_WRONG = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=7)


def test_chance_of_signal_of_three_completions_in_pairs():
    # Of the pairs ab ac bc two differ where b and c are equal, all where none are.
    chances = chance_of_signal([[1, 0, 0], [1, 0, 2], [1, 1, 1]], group_size=2)

    assert chances.tolist() == pytest.approx([2 / 3, 1, 0])


@given(st.lists(RIGHT_OR_WRONG, min_size=1, max_size=3), st.integers(2, 7))
def test_chance_of_signal_equals_drawing_every_group(rewards, size):
    found = chance_of_signal(rewards, group_size=size)

    for values, chance in zip(rewards, found, strict=True):
        if size > len(values):
            continue
        draws = list(itertools.combinations(values, size))
        share = sum(len(set(draw)) > 1 for draw in draws) / len(draws)
        assert chance == pytest.approx(share)


def test_chance_of_signal_is_unbiased():
    p, size, rng = 0.2, 4, random.Random(0)
    samples = [[float(rng.random() < p) for _ in range(8)] for _ in range(20_000)]

    found = chance_of_signal(samples, group_size=size)

    assert found.mean() == pytest.approx(1 - p**size - (1 - p) ** size, abs=0.01)


def test_chance_of_signal_of_larger_groups_is_rather_too_small():
    p, size, rng = 0.1, 16, random.Random(0)
    samples = [[float(rng.random() < p) for _ in range(8)] for _ in range(5_000)]

    found = chance_of_signal(samples, group_size=size)

    assert 0.4 < found.mean() < 1 - p**size - (1 - p) ** size


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_without_two_rewards_the_signal_is_none(rewards):
    assert chance_of_signal([rewards], group_size=8).tolist() == [0.0]


@pytest.fixture(scope="module")
def lines(model_folder, rows_path, tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("probe")
    config = write_config(folder, config_tree(model_folder, rows_path))
    out = folder / "probe.jsonl"
    done = run_trainer("probe", config, "--out", out, "--prompts", 6, "--samples", 4)
    assert done.returncode == 0, done.stderr
    return read_events(out)


def test_episodes_are_written_with_their_turns_and_measured(tmp_path):
    game = STARTERS / "guess" / "run.toml"
    out = tmp_path / "probe.jsonl"

    done = run_trainer("probe", game, "--out", out, "--prompts", 2, "--samples", 4)

    assert done.returncode == 0, done.stderr
    completions = [c for g in only(read_events(out), "group") for c in g["completions"]]
    for found in completions:
        first, second, *_ = found["turns"]
        assert (first["author"], second["author"]) == ("policy", "environment")
        assert found["turns"][-1]["end"] == len(found["text"])
    # Its advantages compare the rewards of turns.
    [measured] = only(read_events(out), "measured")
    assert measured["metrics"]["update_problem"] is None
    assert measured["metrics"]["mean_turns"] > 1


def test_it_tells_each_group_and_how_far_it_is(lines):
    groups, progress = only(lines, "group"), only(lines, "progress")

    assert [group["row"] for group in groups] == list(range(6))
    assert all(len(group["completions"]) == 4 for group in groups)
    assert [(each["done"], each["total"]) for each in progress] == [
        (n, 6) for n in range(1, 7)
    ]
    assert [each["name"] for each in only(lines, "phase")] == [
        "loading",
        "sampling",
        "updating",
    ]


def test_completions_are_scored_as_the_run_would(lines, model_folder, rows_path):
    config = RunConfig.model_validate(config_tree(model_folder, rows_path))
    rows = [json.loads(line) for line in rows_path.read_text().splitlines()]

    for group in only(lines, "group"):
        row = rows[group["row"]]
        for found in group["completions"]:
            sample = Sample(row["prompt"], found["text"], row["answer"], row["columns"])
            score = score_completion(config.reward.recipe, sample)
            assert found["reward"] == score.total
            assert found["rules"] == score.rules


def test_its_numbers_are_those_of_its_completions(lines):
    (measured,) = only(lines, "measured")
    metrics = measured["metrics"]
    groups = [group["completions"] for group in only(lines, "group")]
    rewards = [[each["reward"] for each in group] for group in groups]
    lengths = [each["num_tokens"] for group in groups for each in group]

    assert metrics["num_prompts"] == 6
    assert metrics["mean"] == pytest.approx(np.mean(rewards))
    assert metrics["mean/low"] <= metrics["mean"] <= metrics["mean/high"]
    assert metrics["mean_length"] == pytest.approx(np.mean(lengths))
    assert metrics["group/seen"] == np.mean([len(set(each)) > 1 for each in rewards])
    assert metrics["signal/share"] == pytest.approx(metrics["group/seen"])  # G = k
    parts = [metrics[f"step/{name}"] for name in ("generate", "score", "update")]
    assert min(parts) > 0
    assert metrics["step/total"] == pytest.approx(sum(parts))
    # A step samples 4 completions of 4 prompts.
    assert metrics["step/tokens"] == pytest.approx(4 * 4 * np.mean(lengths))
    assert metrics["tokens_per_second"] > 0
    assert metrics["peak_bytes"] > 10**6
    highest = [[reward == 1.0 for reward in each] for each in rewards]
    assert metrics["pass@1"] == pytest.approx(np.mean(highest))
    assert metrics["pass@4"] == pytest.approx(np.mean([any(each) for each in highest]))


def test_only_sampling_leaves_the_step_out(model_folder, rows_path, tmp_path):
    config = write_config(tmp_path, config_tree(model_folder, rows_path))
    out = tmp_path / "probe.jsonl"

    done = run_trainer("probe", config, "--out", out, "--prompts", 2, "--sample-only")

    assert done.returncode == 0, done.stderr
    (measured,) = only(read_events(out), "measured")
    assert measured["metrics"]["step/update"] is None
    assert measured["metrics"]["step/total"] is None
    assert len(only(read_events(out), "group")[0]["completions"]) == 4  # group_size


def test_prompts_that_cannot_be_sampled_are_reported(model_folder, rows_path, tmp_path):
    tree = config_tree(model_folder, rows_path, data={"max_prompt_tokens": 3})
    out = tmp_path / "probe.jsonl"

    done = run_trainer("probe", write_config(tmp_path, tree), "--out", out)

    assert done.returncode == 2
    (failed,) = only(read_events(out), "failed")
    assert "1 to 3 are allowed" in failed["error"]


def test_a_stop_keeps_what_was_sampled(model_folder, rows_path, tmp_path, monkeypatch):
    tree = config_tree(
        model_folder, rows_path, rollout={"prompts_per_step": 1, "group_size": 2}
    )
    out = tmp_path / "probe.jsonl"
    add = _Lines.add

    def add_and_be_stopped(self: _Lines, kind: str, **fields: Any) -> None:
        add(self, kind, **fields)
        if kind == "group" and fields["row"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_Lines, "add", add_and_be_stopped)
    done = run_trainer("probe", write_config(tmp_path, tree), "--out", out)

    assert done.returncode == 3, done.stderr
    lines = read_events(out)
    (measured,) = only(lines, "measured")
    assert len(only(lines, "group")) == measured["metrics"]["num_prompts"] == 2
    assert measured["metrics"]["mean"] is not None


def test_a_probe_is_of_the_first_phase_and_saves_nothing(model_folder, rows_path):
    tree = config_tree(model_folder, rows_path)
    tree["phases"] = [
        {"name": "sft", "num_steps": 2, "changes": {"rollout": {"group_size": 2}}},
        {"name": "rl", "num_steps": 4},
    ]

    config = config_of_probe(RunConfig.model_validate(tree))

    assert config.rollout.group_size == 2
    assert config.phases == ()
    assert (config.data.num_eval_rows, config.evaluation.every_steps) == (0, 0)


@pytest.mark.parametrize("lora_rank", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_a_checkpoint_is_sampled_next_to_its_base_model(
    lora_rank, model_folder, rows_path, tmp_path
):
    tree = config_tree(
        model_folder,
        rows_path,
        model={"lora_rank": lora_rank, "lora_alpha": 64.0},
        optim={"num_steps": 1, "learning_rate": 0.1},
        checkpoint={"every_steps": 1},
        evaluation={"every_steps": 0},
    )
    config, out = write_config(tmp_path, tree), tmp_path / "out"
    assert run_trainer("run", config, "--out", out).returncode == 0
    (checkpoint,) = (out / "checkpoints").glob("step-*")

    def groups(*options: object) -> list[dict[str, Any]]:
        lines = tmp_path / "lines.jsonl"
        lines.unlink(missing_ok=True)
        done = run_trainer("probe", config, "--out", lines, "--samples", 3, *options)
        assert done.returncode == 0, done.stderr
        return only(read_events(lines), "group")

    def texts(group: dict[str, Any]) -> list[str]:
        return [each["text"] for each in group["completions"]]

    own, base = groups("--checkpoint", checkpoint, "--prompts", 1)
    (start,) = groups("--prompts", 1, "--sample-only")
    unscored = groups("--checkpoint", checkpoint, "--prompts", 2, "--no-scores")

    assert (own["is_base"], base["is_base"]) == (False, True)
    assert texts(base) == texts(start)  # what the run began with, by the same seeds
    assert texts(own) != texts(base)
    assert len(texts(own)) == 3
    assert own["completions"][0]["rules"].keys() == {"short"}
    assert [each["row"] for each in unscored] == [0, 1, 0, 1]
    assert texts(unscored[0]) == texts(own)
    assert unscored[0]["completions"][0]["reward"] is None


def test_a_deleted_checkpoint_is_reported(model_folder, rows_path, tmp_path):
    config = write_config(tmp_path, config_tree(model_folder, rows_path))
    out = tmp_path / "probe.jsonl"

    done = run_trainer(
        "probe",
        config,
        "--out",
        out,
        "--checkpoint",
        tmp_path / "step-000001-attempt-1",
    )

    assert done.returncode == 2
    (failed,) = only(read_events(out), "failed")
    assert "step-000001-attempt-1 were deleted" in failed["error"]
