"""One step off: a batch is sampled while the one before it is trained on."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.grpo
import trainer.run.loop
from tests.trainer.run.test_resume import story
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.config import ModelConfig, RunConfig
from trainer.model.policy import Policy, load_policy
from trainer.rollout.episodes import EngineSource
from trainer.run.outcome import StepOutcome
from trainer.stopping import SAMPLING_THREAD

CORRECTED = {"importance_correction": "token_truncate"}
OFTEN = {"minibatches": 2, "updates_per_batch": 2}
PATIENCE = 60.0


def parts_of(**parts: Any) -> dict[str, Any]:
    rollout = {"one_step_off": True} | parts.get("rollout", {})
    return parts | {"rollout": rollout, "loss": CORRECTED | parts.get("loss", {})}


def tree_of(model: Path, rows: Path, /, **parts: Any) -> dict[str, Any]:
    return config_tree(model, rows, **parts_of(**parts))


def run(folder: Path, tree: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    return done.returncode, read_events(folder / "out" / "events.jsonl")


def metrics_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["metrics"] for event in only(events, "step_finished")]


@pytest.fixture
def outcomes(monkeypatch) -> list[StepOutcome]:
    """What each step did, in order."""
    seen: list[StepOutcome] = []
    train_step = trainer.grpo.train_step

    def watch(*given: Any, **named: Any) -> StepOutcome:
        seen.append(train_step(*given, **named))
        return seen[-1]

    monkeypatch.setattr(trainer.run.loop, "train_step", watch)
    return seen


def policy_after(folder: Path, step: int, start: Path) -> Policy:
    saved = folder / "out" / "checkpoints" / f"step-{step:06d}-attempt-1" / "model"
    return load_policy(ModelConfig(path=str(saved if step else start), device="cpu"))


def gaps(outcome: StepOutcome, policy: Policy) -> tuple[float, float]:
    """How far a policy's log-probs are from those of sampling, and from the old ones:
    the largest difference of any token.
    """
    sampling = old = 0.0
    for minibatch in outcome.minibatches:
        for micro in minibatch.micro_batches:
            with torch.no_grad():
                own, _ = policy.logprobs(micro, temperature=1.0)
            assert micro.old_logprobs is not None
            difference = (own - micro.sampling_logprobs).abs() * micro.mask
            sampling = max(sampling, difference.max().item())
            difference = (own - micro.old_logprobs).abs() * micro.mask
            old = max(old, difference.max().item())
    return sampling, old


@pytest.mark.parametrize("lora_rank", [0, pytest.param(4, marks=pytest.mark.slow)])
def test_a_batch_is_of_the_weights_before_the_last_update(
    lora_rank, model_folder, rows_path, tmp_path, outcomes
):
    tree = tree_of(
        model_folder,
        rows_path,
        model={"lora_rank": lora_rank},
        loss={"kl_coef": 0.05},  # by the base, which switches adapters off
        optim={"num_steps": 4} | OFTEN,
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 1},
    )

    code, _ = run(tmp_path, tree)

    assert code == 0
    for step, outcome in enumerate(outcomes, start=1):
        sampler = policy_after(tmp_path, max(step - 2, 0), model_folder)
        trained = policy_after(tmp_path, step - 1, model_folder)
        assert gaps(outcome, sampler)[0] < 1e-4
        assert gaps(outcome, trained)[1] < 1e-4
        if step > 1:
            assert gaps(outcome, trained)[0] > 1e-2


def test_staleness_counts_the_step_between(model_folder, rows_path, tmp_path, outcomes):
    tree = tree_of(model_folder, rows_path, optim={"num_steps": 4} | OFTEN)

    _, events = run(tmp_path, tree)

    steps = metrics_of(events)
    # 4 updates a step: 0 to 3 lie between sampling and use, and one step off 4 more
    assert [step["staleness/mean"] for step in steps] == [1.5, 5.5, 5.5, 5.5]
    assert steps[0]["mismatch/max"] < 1e-4
    assert all("staleness/kl" not in step for step in steps[:1])
    for step, outcome in zip(steps[1:], outcomes[1:], strict=True):
        assert not [name for name in step if name.startswith("mismatch/")]
        gap = torch.cat(
            [
                (micro.old_logprobs - micro.sampling_logprobs)[micro.mask > 0]
                for micro in outcome.minibatches[0].micro_batches
                if micro.old_logprobs is not None
            ]
        ).double()
        expected = (gap.exp() - gap - 1).mean().item()
        assert step["staleness/kl"] == pytest.approx(expected)
        assert step["staleness/kl"] > 1e-5
        assert step["importance/mean"] != 1.0


def test_training_and_sampling_are_under_way_at_the_same_time(
    model_folder, rows_path, tmp_path, monkeypatch
):
    """Each waits for the other to have begun, which only both at once can bear."""
    trains = {step: threading.Event() for step in range(1, 5)}
    samples = {step: threading.Event() for step in range(1, 5)}
    update, complete = trainer.grpo.run_update, EngineSource.complete

    def run_update(training: Any, *given: Any, **named: Any) -> Any:
        step = training.journal.step
        trains[step].set()
        if step < 4:
            assert samples[step + 1].wait(PATIENCE)
        return update(training, *given, **named)

    def sample(
        self: EngineSource, prompts: Sequence[Any], step: int, **named: Any
    ) -> Any:
        samples[step].set()
        if step > 1:
            assert trains[step - 1].wait(PATIENCE)
            assert not trains[step].is_set()
        return complete(self, prompts, step, **named)

    monkeypatch.setattr(trainer.grpo, "run_update", run_update)
    monkeypatch.setattr(EngineSource, "complete", sample)

    code, events = run(
        tmp_path, tree_of(model_folder, rows_path, optim={"num_steps": 4})
    )

    assert code == 0, events[-1]
    assert len(only(events, "step_finished")) == 4


def test_waiting_and_concurrent_work_are_reported_separately(
    model_folder, rows_path, tmp_path, monkeypatch
):
    sampled, update = threading.Event(), trainer.grpo.run_update
    complete = EngineSource.complete

    def run_update(*given: Any, **named: Any) -> Any:
        for thread in threading.enumerate():
            if thread.name == SAMPLING_THREAD:
                thread.join(PATIENCE)
        return update(*given, **named)

    def sample(*given: Any, **named: Any) -> Any:
        sampled.wait(0.1)  # which no one ends
        return complete(*given, **named)

    monkeypatch.setattr(trainer.grpo, "run_update", run_update)
    monkeypatch.setattr(EngineSource, "complete", sample)

    _, events = run(tmp_path, tree_of(model_folder, rows_path, optim={"num_steps": 3}))

    first, second, last = metrics_of(events)
    assert first["time/generate"] > 0.1  # its own batch
    assert second["time/ahead_generate"] > 0.1
    assert second["time/ahead_score"] > 0
    assert second["time/generate"] < second["time/ahead_generate"]
    assert second["time/score"] == 0
    assert "time/ahead_generate" not in last


def test_evaluation_samples_from_the_newest_weights(
    model_folder, rows_path, tmp_path, monkeypatch
):
    held: list[dict[str, torch.Tensor]] = []
    evaluate = trainer.run.loop.evaluate

    def watch(engine: Any, *given: Any, **named: Any) -> Any:
        assert SAMPLING_THREAD not in {each.name for each in threading.enumerate()}
        weights = engine._policy.model.named_parameters()
        held.append({name: weight.detach().clone() for name, weight in weights})
        return evaluate(engine, *given, **named)

    monkeypatch.setattr(trainer.run.loop, "evaluate", watch)
    tree = tree_of(
        model_folder,
        rows_path,
        optim={"num_steps": 3},
        evaluation={"every_steps": 1},
        checkpoint={"every_steps": 1},
    )

    run(tmp_path, tree)

    assert len(held) == 4
    for step, weights in enumerate(held):
        newest = policy_after(tmp_path, step, model_folder).model.named_parameters()
        assert all(torch.equal(weights[name], weight) for name, weight in newest)


@pytest.mark.parametrize(
    "mode", [pytest.param("drop", marks=pytest.mark.slow), "refill"]
)
def test_groups_are_dropped_and_replaced_as_ever(
    mode, model_folder, rows_path, tmp_path
):
    rule = {"name": "short", "kind": "length", "params": {"maximum": 3}}
    parts = {
        "reward": {"recipe": {"rules": [rule]}},
        "rollout": {"dynamic_sampling": mode, "max_refills": 3},
        "optim": {"num_steps": 4, "learning_rate": 1e-9},
    }

    _, events = run(tmp_path / "off", tree_of(model_folder, rows_path, **parts))
    parts["rollout"] |= {"one_step_off": False}
    _, plain = run(tmp_path / "on", tree_of(model_folder, rows_path, **parts))

    # weights that stand still sample the same at any time
    assert groups_of(events) == groups_of(plain)
    steps = metrics_of(events)
    assert any(step["sampling/num_dropped"] > 0 for step in steps)
    assert (max(step["sampling/num_rounds"] for step in steps) > 1) == (
        mode == "refill"
    )


def groups_of(events: list[dict[str, Any]]) -> list[Any]:
    return [
        (g["step"], g["prompt_index"], g["is_trained"], c["text"], c["reward"])
        for g in only(events, "group_scored")
        for c in g["completions"]
    ]


def test_a_start_that_never_changes_is_sampled_ahead_with_the_same_result(
    model_folder, rows_path, tmp_path
):
    parts: dict[str, Any] = {
        "advantage": {"credit": "indicator"},
        "loss": {"surrogate": "reinforce"},
    }
    for name, ahead in (("plain", False), ("ahead", True)):
        rollout = {"source": "start", "one_step_off": ahead}
        tree = config_tree(model_folder, rows_path, rollout=rollout, **parts)
        assert run(tmp_path / name, tree)[0] == 0

    logs = [tmp_path / name / "out" / "events.jsonl" for name in ("plain", "ahead")]
    assert story(logs[0]) == story(logs[1])


def test_each_phase_begins_with_a_batch_of_its_own_weights(
    model_folder, rows_path, tmp_path
):
    tree = tree_of(model_folder, rows_path)
    plain = {"rollout": {"one_step_off": False}}
    tree["phases"] = [
        {"name": "one", "num_steps": 3},
        {"name": "two", "num_steps": 1, "changes": plain},
        {"name": "three", "num_steps": 2},
    ]

    code, events = run(tmp_path, tree)

    assert code == 0
    staleness = [step["staleness/mean"] for step in metrics_of(events)]
    assert staleness == [0, 1, 1, 0, 0, 1]


@pytest.mark.slow
def test_the_reward_rises(model_folder, rows_path, tmp_path):
    tree = tree_of(
        model_folder, rows_path, optim={"num_steps": 25}, evaluation={"every_steps": 0}
    )

    _, events = run(tmp_path, tree)

    rewards = [step["reward/mean"] for step in metrics_of(events)]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 0.5


def test_without_it_nothing_is_sampled_in_a_thread(
    model_folder, rows_path, tmp_path, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr("trainer.rollout.prefetch._begin", refuse)
    tree = config_tree(model_folder, rows_path, optim={"num_steps": 2})

    code, events = run(tmp_path, tree)

    assert code == 0
    assert all("time/ahead_generate" not in step for step in metrics_of(events))


@pytest.mark.parametrize("surrogate", ["dppo_tv", "dppo_kl"])
def test_a_step_off_is_in_the_ratio_of_dppo(
    surrogate, model_folder, rows_path, tmp_path
):
    dppo = {"surrogate": surrogate, "old_logprobs": "sampling", "sampler_penalty": 1e-3}
    loss = dppo | {"importance_correction": None, "clip_low": 1e-4, "clip_high": 1e-4}
    optim = {"num_steps": 3, "learning_rate": 1e-2}
    tree = tree_of(model_folder, rows_path, loss=loss, optim=optim)

    code, events = run(tmp_path, tree)

    steps = metrics_of(events)
    assert code == 0
    assert steps[0]["ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert [step["staleness/mean"] for step in steps] == [0.0, 1.0, 1.0]
    assert all(abs(step["ratio/mean"] - 1) > 1e-4 for step in steps[1:])
    assert all(step["clip/frac"] > 0 for step in steps[1:])


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"loss": {"importance_correction": None}}, r"Set loss\.importance_correction"),
        ({"loss": {"old_logprobs": "sampling"}}, "loss.old_logprobs"),
        ({"loss": {"kl_in": "reward", "kl_coef": 0.1}}, 'Use kl_in = "loss"'),
        ({"rollout": {"engine": "vllm", "sleep": True}}, "rollout.sleep"),
        (
            {
                "rollout": {"source": "dataset", "group_size": 1},
                "advantage": {"credit": "ones"},
                "loss": {"importance_correction": None},
            },
            "samples nothing",
        ),
    ],
)
def test_one_step_off_refuses_incompatible_settings(parts, words):
    with pytest.raises(ValueError, match=words):
        RunConfig.model_validate(tree_of(Path("m"), Path("r"), **parts))
