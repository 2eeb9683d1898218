"""One step off: what goes wrong in sampling or training while both go on."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainer.grpo
from tests.trainer.rollout.test_one_step_off import (
    PATIENCE,
    groups_of,
    metrics_of,
    parts_of,
    run,
    tree_of,
)
from tests.trainer.run.test_resume import story
from tests.trainer.tiny import only, read_events, run_trainer
from trainer.algorithm.loss import objective
from trainer.rollout.decoder import draw_tokens
from trainer.rollout.episodes import EngineSource
from trainer.stopping import SAMPLING_THREAD


def test_sampling_that_runs_out_of_memory_is_reported_and_continues(
    model_folder, rows_path, tmp_path, trained, monkeypatch
):
    undisturbed = read_events(trained(**parts_of()) / "events.jsonl")
    tree = tree_of(model_folder, rows_path)

    def drawn(logits: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if threading.current_thread().name == SAMPLING_THREAD and len(logits) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return draw_tokens(logits, *rest, **options)

    monkeypatch.setattr("trainer.rollout.decoder.draw_tokens", drawn)
    _, events = run(tmp_path / "disturbed", tree)

    (warned,) = [e for e in only(events, "warned") if e["code"] == "out_of_memory"]
    assert (warned["step"], warned["value"]) == (1, 8.0)
    assert [event["line"] for event in events] == list(range(1, len(events) + 1))
    assert groups_of(events) == groups_of(undisturbed)


@pytest.fixture
def break_sampling(monkeypatch) -> Callable[[int, int, Exception], list[int]]:
    """Let a step's sampling fail within the given one of all updates, which waits for
    it; the updates that are made.
    """

    def broken(fails: int, within: int, error: Exception) -> list[int]:
        updates: list[int] = []
        begun = threading.Event()
        complete, add = EngineSource.complete, trainer.grpo.add_gradients

        def sample(
            self: EngineSource, prompts: Sequence[Any], step: int, **named: Any
        ) -> Any:
            if step == fails:
                assert begun.wait(PATIENCE)
                raise error
            return complete(self, prompts, step, **named)

        def add_gradients(*given: Any, **named: Any) -> Any:
            updates.append(len(updates) + 1)
            if updates[-1] == within:
                begun.set()
            for thread in threading.enumerate():
                if thread.name == SAMPLING_THREAD:
                    thread.join(PATIENCE)
            return add(*given, **named)

        monkeypatch.setattr(EngineSource, "complete", sample)
        monkeypatch.setattr(trainer.grpo, "add_gradients", add_gradients)
        return updates

    return broken


@pytest.mark.parametrize(
    "error",
    [
        ValueError("The rollout server at http://127.0.0.1 is gone. Start it again."),
        pytest.param(
            torch.OutOfMemoryError("CUDA out of memory."), marks=pytest.mark.slow
        ),
        pytest.param(KeyError("what"), marks=pytest.mark.slow),
    ],
)
def test_sampling_that_fails_fails_the_run_before_its_next_update(
    error, model_folder, rows_path, tmp_path, break_sampling
):
    updates = break_sampling(3, 5, error)
    values = []
    for ahead in (True, False):
        tree = tree_of(
            model_folder,
            rows_path,
            optim={"updates_per_batch": 4},
            rollout={"one_step_off": ahead},
        )
        code, events = run(tmp_path / str(ahead), tree)

        assert code == 1
        values.append((events[-1]["type"], events[-1]["error"]))
        if ahead:
            assert len(updates) == 4 + 1
            assert (
                "in complete" in events[-1]["details"]
                or "in sample" in (events[-1]["details"])
            )
            assert [e["step"] for e in only(events, "step_finished")] == [1]

    assert values[0] == values[1]
    assert values[0][0] == "run_failed"


def test_a_stop_keeps_what_is_being_sampled(
    model_folder, rows_path, tmp_path, trained, monkeypatch
):
    whole = trained(**parts_of())
    tree = tree_of(model_folder, rows_path)
    update = trainer.grpo.run_update

    def run_update(training: Any, *given: Any, **named: Any) -> Any:
        if training.journal.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(training, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.grpo, "run_update", run_update)
        code, events = run(tmp_path / "stopped", tree)
    assert code == 3
    assert (events[-1]["type"], events[-1]["step"]) == ("run_stopped", 3)
    first = tmp_path / "stopped" / "out" / "events.jsonl"

    done = run_trainer(
        *("run", tmp_path / "stopped" / "run.json"),
        *("--out", tmp_path / "stopped" / "out", "--resume"),
    )

    assert done.returncode == 0, done.stderr
    logs = [first.with_name("events-1.jsonl"), first]
    assert story(*logs) == story(whole / "events.jsonl")


def test_a_batch_of_discarded_weights_is_not_trained_on(
    model_folder, rows_path, tmp_path, monkeypatch
):
    calls = 0

    def fail(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        loss, statistics = objective(*given, **named)
        return loss * (torch.nan if calls in (5, 6) else 1.0), statistics

    monkeypatch.setattr(trainer.grpo, "objective", fail)
    tree = tree_of(
        model_folder,
        rows_path,
        optim={"num_steps": 8, "micro_batch_tokens": 100_000, "max_nonfinite": 2},
        checkpoint={"every_steps": 3},
    )

    code, events = run(tmp_path, tree)

    assert code == 0
    warned = [(w["code"], w["step"]) for w in only(events, "warned")]
    assert ("rolled_back", 6) in warned
    checkpoints = tmp_path / "out" / "checkpoints"
    before, after = (
        load_file(checkpoints / f"step-{n:06d}-attempt-1" / "model/model.safetensors")
        for n in (3, 6)
    )
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (checkpoints / "step-000003-attempt-1" / "ahead").is_dir()
    assert not (checkpoints / "step-000006-attempt-1" / "ahead").exists()
    steps = metrics_of(events)
    assert [s["staleness/mean"] for s in steps] == [0, 1, 1, 1, 1, 1, 0, 1]
    assert steps[6]["mismatch/max"] < 1e-4
