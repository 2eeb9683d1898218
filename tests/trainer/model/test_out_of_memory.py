"""A step that runs out of memory is done again in smaller parts, with equal result."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.rollout.decoder import draw_tokens

ROOM = 64  # tokens that a pass of the fake GPU holds


@pytest.fixture
def little_memory(monkeypatch) -> list[int]:
    """Passes with more than ROOM tokens fail; the sizes of all passes."""
    sizes: list[int] = []
    forward = Policy.hidden

    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        sizes.append(len(micro.layout(torch.float32).input_ids))
        if sizes[-1] > ROOM:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return forward(self, micro)

    monkeypatch.setattr(Policy, "hidden", hidden)
    return sizes


def run(
    folder: Path, model: Path, rows: Path, *, tokens: int, **optim: Any
) -> list[dict[str, Any]]:
    return run_tree(
        folder,
        config_tree(
            model,
            rows,
            loss={"kl_coef": 0.05},
            optim={"num_steps": 4, "micro_batch_tokens": tokens} | optim,
        ),
    )


def run_tree(folder: Path, tree: dict[str, Any]) -> list[dict[str, Any]]:
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return read_events(folder / "out" / "events.jsonl")


def weights(folder: Path) -> bytes:
    model = folder / "out" / "checkpoints" / "step-000004-attempt-1" / "model"
    return (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "optim",
    [
        {},
        pytest.param({"updates_per_batch": 2}, marks=pytest.mark.slow),
        {"minibatches": 2, "updates_per_batch": 2},
    ],
)
def test_the_run_ends_as_with_small_micro_batches_from_the_start(
    optim, model_folder, rows_path, tmp_path, little_memory
):
    run(tmp_path / "small", model_folder, rows_path, tokens=64, **optim)
    assert max(little_memory) <= ROOM

    events = run(tmp_path / "large", model_folder, rows_path, tokens=256, **optim)

    assert max(little_memory) > ROOM
    assert weights(tmp_path / "large") == weights(tmp_path / "small")
    warnings = [w for w in only(events, "warned") if w["code"] == "out_of_memory"]
    values = [(w["step"], w["value"]) for w in warnings]
    # half of the batch is one part with 128 tokens too, so that is passed over
    assert values == [(1, 128.0), (1, 64.0)][1 if "minibatches" in optim else 0 :]
    assert "tokens to 64" in warnings[-1]["message"]
    assert [e["step"] for e in only(events, "step_finished")] == [1, 2, 3, 4]


def test_memory_that_runs_out_in_the_middle_of_a_batch_drops_its_gradients(
    model_folder, rows_path, tmp_path, monkeypatch
):
    undisturbed = run(tmp_path / "a", model_folder, rows_path, tokens=160)
    forward, calls = Policy.hidden, 0

    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        nonlocal calls
        calls += torch.is_grad_enabled()
        if torch.is_grad_enabled() and calls == 6:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, micro)

    monkeypatch.setattr(Policy, "hidden", hidden)

    events = run(tmp_path / "b", model_folder, rows_path, tokens=160)

    (warning,) = [w for w in only(events, "warned") if w["code"] == "out_of_memory"]
    assert warning["step"] == 3
    for ours, theirs in zip(
        only(events, "step_finished"), only(undisturbed, "step_finished"), strict=True
    ):
        for name in ("loss", "grad_norm", "reward/mean", "kl/mean"):
            assert ours["metrics"][name] == pytest.approx(
                theirs["metrics"][name], rel=1e-4, abs=1e-6
            )


def test_fitting_tokens_survive_a_resume(
    model_folder, rows_path, tmp_path, little_memory
):
    run(tmp_path, model_folder, rows_path, tokens=256)
    little_memory.clear()

    done = run_trainer(
        "run",
        tmp_path / "run.json",
        "--out",
        tmp_path / "resumed",
        "--resume-from",
        tmp_path / "out" / "checkpoints" / "step-000002-attempt-1",
    )

    assert done.returncode == 0, done.stderr
    assert max(little_memory) <= ROOM
    resumed = tmp_path / "resumed" / "checkpoints" / "step-000004-attempt-1" / "model"
    assert (resumed / "model.safetensors").read_bytes() == weights(tmp_path)


def test_a_completion_too_large_for_the_memory_fails_the_run_with_advice(
    model_folder, rows_path, tmp_path, monkeypatch
):
    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Policy, "hidden", hidden)
    config = write_config(tmp_path, config_tree(model_folder, rows_path))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 1
    failed = read_events(tmp_path / "out" / "events.jsonl")[-1]
    assert "micro_batch_tokens" in failed["error"]


@pytest.mark.parametrize("source", ["policy", "start"])
def test_a_run_says_that_it_samples_less_at_once(
    source, model_folder, rows_path, tmp_path, monkeypatch
):
    draw = draw_tokens

    def drawn(
        logits: torch.Tensor, *rest: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(logits) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return draw(logits, *rest, **options)

    monkeypatch.setattr("trainer.rollout.decoder.draw_tokens", drawn)
    # evaluation, by the policy's own engine, stays below what memory bears
    tree = config_tree(
        model_folder,
        rows_path,
        rollout={"source": source},
        loss={"surrogate": "reinforce"},
        optim={"num_steps": 4},
    )

    events = run_tree(tmp_path, tree)

    (warned,) = [e for e in only(events, "warned") if "sampling" in e["message"]]
    assert warned["code"] == "out_of_memory"
    assert (warned["step"], warned["value"]) == (1, 8.0)
    assert "rows to 8" in warned["message"]
    assert len(only(events, "step_finished")) == 4
