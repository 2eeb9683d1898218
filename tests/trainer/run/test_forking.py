"""A second run from a first one's checkpoint, with the same settings or with others."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.run.test_resume import story
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_rows,
)

AHEAD = {
    "rollout": {"one_step_off": True},
    "loss": {"importance_correction": "token_truncate"},
}


def train(folder: Path, tree: dict[str, Any], *more: object) -> Path:
    config = write_config(folder, tree)
    done = run_trainer("run", config, "--out", folder / "out", *more)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def fork(folder: Path, tree: dict[str, Any], parent: Path, *, step: int) -> Path:
    """As a worker begins one: the checkpoint is of no life of its own."""
    origin = folder / "checkpoints" / f"step-{step:06d}-attempt-0"
    source = parent / "checkpoints" / f"step-{step:06d}-attempt-1"
    shutil.copytree(source, origin)
    own = ("--checkpoints", origin.parent, "--resume-from", origin, "--attempt", 1)
    return train(folder, tree, *own)


def steps_of(out: Path) -> list[int]:
    return [e["step"] for e in only(read_events(out / "events.jsonl"), "step_finished")]


@pytest.mark.parametrize("parts", [{}, AHEAD], ids=["plain", "one-step-off"])
def test_a_fork_with_the_same_settings_is_its_parent_bit_for_bit(
    parts, model_folder, rows_path, tmp_path, trained
):
    parent = trained(**parts)
    tree = config_tree(model_folder, rows_path, **parts)

    child = fork(tmp_path / "child", tree, parent, step=2)

    assert steps_of(child) == [3, 4, 5, 6]
    assert story(child / "events.jsonl") == story(parent / "events.jsonl", after=2)
    weights = Path("model", "model.safetensors")
    own = tmp_path / "child" / "checkpoints" / "step-000006-attempt-1" / weights
    theirs = parent / "checkpoints" / "step-000006-attempt-1" / weights
    assert own.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(
            {"optim": {"learning_rate": 1e-3, "num_steps": 4}}, marks=pytest.mark.slow
        ),
        pytest.param({"loss": {"kl_coef": 0.05}}, marks=pytest.mark.slow),
        {"loss": {"kl_coef": 0.05, "kl_target": 0.5, "kl_horizon": 50}},
        {"rollout": {"group_size": 2, "prompts_per_step": 8, "max_new_tokens": 6}},
        {"reference": {"reset_every_steps": 2}, "loss": {"kl_coef": 0.05}},
    ],
    ids=["rate", "kl", "adaptive-kl", "sampling", "reference"],
)
def test_settings_that_a_checkpoint_does_not_hold_change_with_the_fork(
    changed, model_folder, rows_path, tmp_path, trained
):
    parent = trained()
    tree = config_tree(model_folder, rows_path)
    for part, values in changed.items():
        tree[part] = tree.get(part, {}) | values

    child = fork(tmp_path / "child", tree, parent, step=2)

    assert steps_of(child) == list(range(3, tree["optim"]["num_steps"] + 1))
    assert story(child / "events.jsonl") != story(parent / "events.jsonl", after=2)


def test_a_batch_ahead_from_other_rows_is_sampled_again(
    model_folder, rows_path, tmp_path, trained
):
    parent = trained(**AHEAD)
    tree = config_tree(model_folder, rows_path, **AHEAD)
    rows = write_rows(tmp_path / "few.jsonl", 10)
    tree["data"] = {"rows": str(rows), "num_eval_rows": 0}

    child = fork(tmp_path / "child", tree, parent, step=2)

    groups = only(read_events(child / "events.jsonl"), "group_scored")
    assert {group["prompt_index"] for group in groups} <= set(range(10))
    assert steps_of(child) == [3, 4, 5, 6]
