"""Losses that are no number: skipped, then gone back from, then given up with proof."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainer.grpo
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.algorithm.loss import objective


@pytest.fixture
def break_updates(monkeypatch) -> Callable[[set[int]], None]:
    """Make the loss of the given updates, counted from 1, no number."""

    def broken(numbers: set[int]) -> None:
        count = 0

        def fail(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            loss, statistics = objective(*given, **named)
            return loss * (torch.nan if count in numbers else 1.0), statistics

        monkeypatch.setattr(trainer.grpo, "objective", fail)

    return broken


def run(
    folder: Path, model_folder: Path, rows: Path, **parts: Any
) -> tuple[int, list[dict[str, Any]]]:
    optim = {"num_steps": 8, "micro_batch_tokens": 100_000, "max_nonfinite": 2}
    tree = config_tree(
        model_folder,
        rows,
        optim=optim | parts.pop("optim", {}),
        checkpoint={"every_steps": 3, "keep_last": 10},
        **parts,
    )
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    return done.returncode, read_events(folder / "out" / "events.jsonl")


def codes(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    kinds = ("update_skipped", "rolled_back")
    return [
        (w["code"], w["step"]) for w in only(events, "warned") if w["code"] in kinds
    ]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    model = folder / "out" / "checkpoints" / f"step-{step:06d}-attempt-1" / "model"
    return load_file(model / "model.safetensors")


def test_a_single_bad_update_is_skipped(
    model_folder, rows_path, tmp_path, break_updates
):
    break_updates({2, 4})

    code, events = run(tmp_path, model_folder, rows_path)

    assert code == 0
    assert codes(events) == [("update_skipped", 2), ("update_skipped", 4)]
    steps = only(events, "step_finished")
    assert [s["step"] for s in steps] == list(range(1, 9))
    assert steps[1]["metrics"]["loss"] is None
    assert steps[2]["metrics"]["loss"] is not None


@pytest.mark.parametrize("lora_rank", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_several_in_a_row_bring_back_the_last_checkpoints_weights(
    lora_rank,
    model_folder,
    rows_path,
    tmp_path,
    break_updates,
):
    # step 4 still learns; its progress is what the rollback gives up
    break_updates({5, 6})

    code, events = run(
        tmp_path, model_folder, rows_path, model={"lora_rank": lora_rank}
    )

    assert code == 0
    assert codes(events) == [
        ("update_skipped", 5),
        ("update_skipped", 6),
        ("rolled_back", 6),
    ]
    values = [w for w in only(events, "warned") if w["code"] == "rolled_back"]
    assert "step-000003-attempt-1" in values[0]["message"]
    assert [s["step"] for s in only(events, "step_finished")] == list(range(1, 9))
    before, after = weights(tmp_path, 3), weights(tmp_path, 6)
    assert all(torch.equal(before[name], after[name]) for name in before)
    state = "optimizer.safetensors"
    folders = [
        tmp_path / "out" / "checkpoints" / f"step-00000{n}-attempt-1" for n in (3, 6)
    ]
    assert (folders[0] / state).read_bytes() == (folders[1] / state).read_bytes()


def test_from_there_on_the_learning_rate_is_half_of_what_it_would_be(
    model_folder, rows_path, tmp_path, break_updates
):
    optim = {"schedule": "linear"}
    _, calm = run(tmp_path / "calm", model_folder, rows_path, optim=optim)
    break_updates({5, 6})

    _, events = run(tmp_path / "broken", model_folder, rows_path, optim=optim)

    rates = [
        [step["metrics"]["lr"] for step in only(reported, "step_finished")]
        for reported in (calm, events)
    ]
    halved = [rate if step <= 6 else rate / 2 for step, rate in enumerate(rates[0], 1)]
    assert rates[1] == halved
    (reported,) = [w for w in only(events, "warned") if w["code"] == "rolled_back"]
    assert " 0.5 " in reported["message"]
    resumed = run_trainer(
        "run",
        tmp_path / "broken" / "run.json",
        "--out",
        tmp_path / "resumed",
        "--resume-from",
        tmp_path / "broken" / "out" / "checkpoints" / "step-000006-attempt-1",
    )
    assert resumed.returncode == 0
    after = only(read_events(tmp_path / "resumed" / "events.jsonl"), "step_finished")
    assert [step["metrics"]["lr"] for step in after] == halved[6:]


def test_without_a_checkpoint_it_goes_back_to_the_start(
    model_folder, rows_path, tmp_path, break_updates
):
    break_updates({2, 3})

    code, events = run(tmp_path, model_folder, rows_path)

    assert code == 0
    values = [w for w in only(events, "warned") if w["code"] == "rolled_back"]
    assert "the starting model" in values[0]["message"]
    start = load_file(model_folder / "model.safetensors")
    after = weights(tmp_path, 3)
    assert all(torch.equal(start[name], after[name]) for name in start)


def test_the_second_time_it_fails_and_leaves_the_batch(
    model_folder, rows_path, tmp_path, break_updates
):
    break_updates({2, 3, 6, 7})

    code, events = run(tmp_path, model_folder, rows_path, loss={"kl_coef": 0.1})

    assert code == 1
    folder = tmp_path / "out" / "failed-batch"
    assert events[-1]["type"] == "run_failed"
    assert str(folder) in events[-1]["error"]
    assert events[-1]["error"].startswith("2 updates")
    assert [s["step"] for s in only(events, "step_finished")] == list(range(1, 8))
    story = json.loads((folder / "batch.json").read_text())
    assert story["step"] == 7
    logged = [g for g in only(events, "group_scored") if g["step"] == 7]
    assert [g["prompt"] for g in story["groups"]] == [g["prompt"] for g in logged]
    texts = [[c["text"] for c in group["completions"]] for group in story["groups"]]
    assert texts == [[c["text"] for c in group["completions"]] for group in logged]
    tensors = load_file(folder / "tensors.safetensors")
    for name in ("input_ids", "advantages", "old_logprobs", "reference_logprobs"):
        assert f"0.0.{name}" in tensors
    assert tensors["0.0.input_ids"].shape[0] == 16


@pytest.mark.slow
def test_the_rollback_is_counted_across_a_resume(
    model_folder, rows_path, tmp_path, break_updates
):
    break_updates({2, 3})
    run(tmp_path, model_folder, rows_path)
    break_updates({2, 3})

    done = run_trainer(
        "run",
        tmp_path / "run.json",
        "--out",
        tmp_path / "resumed",
        "--resume-from",
        tmp_path / "out" / "checkpoints" / "step-000003-attempt-1",
    )

    assert done.returncode == 1
    assert "second time" in done.stderr


@pytest.mark.slow
def test_a_later_phase_goes_back_to_its_own_beginning(
    model_folder, rows_path, tmp_path, break_updates
):
    break_updates({6, 7})
    tree = config_tree(
        model_folder,
        rows_path,
        loss={"kl_coef": 0.1},
        optim={"num_steps": 8, "micro_batch_tokens": 100_000, "max_nonfinite": 2},
        checkpoint={"every_steps": 0},
    )
    tree["phases"] = [{"name": "one", "num_steps": 4}, {"name": "two", "num_steps": 4}]

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    values = [w for w in only(events, "warned") if w["code"] == "rolled_back"]
    assert "step-000004-attempt-1" in values[0]["message"]
    # its reference is the policy of that moment, so the KL is 0 after going back
    metrics = {e["step"]: e["metrics"] for e in only(events, "step_finished")}
    assert metrics[6]["kl/mean"] > 1e-6
    assert metrics[8]["kl/mean"] == pytest.approx(0.0, abs=1e-9)
