"""What a step's metrics count, when sampling is dynamic and updates are several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.grpo
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.algorithm.loss import objective
from trainer.config import ModelConfig
from trainer.model.policy import load_policy

SHORT = {
    "recipe": {"rules": [{"name": "short", "kind": "length", "params": {"maximum": 3}}]}
}


REFILL = {
    "reward": SHORT,
    "rollout": {"dynamic_sampling": "refill", "max_refills": 3},
}

Reported = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture
def tell(trained) -> Callable[..., Reported]:
    """The metrics of each step of a run, and the groups."""

    def reported(**parts: Any) -> Reported:
        optim = {"num_steps": 3, "learning_rate": 1e-9} | parts.pop("optim", {})
        evaluation = {"every_steps": 0}
        out = trained(optim=optim, evaluation=evaluation, **parts)
        events = read_events(out / "events.jsonl")
        steps = [event["metrics"] for event in only(events, "step_finished")]
        return steps, only(events, "group_scored")

    return reported


def train(folder: Path, model: Path, rows: Path, **parts: Any) -> None:
    tree = config_tree(model, rows, evaluation={"every_steps": 0}, **parts)
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr


def test_charts_of_rewards_do_not_jump_when_refilling_is_switched_on(tell):
    reported = {
        mode: tell(
            reward=SHORT, rollout=REFILL["rollout"] | {"dynamic_sampling": mode}
        )[0]
        for mode in ("off", "drop", "refill")
    }

    same = ("reward/", "group/", "completion/")
    for step in range(3):
        own = [
            {
                name: v
                for name, v in reported[mode][step].items()
                if name.startswith(same)
            }
            for mode in reported
        ]
        assert own[0] == own[1] == own[2]
    assert any(step["group/frac_zero_std"] > 0 for step in reported["off"])


def test_dropped_groups_are_logged_and_counted(tell):
    steps, groups = tell(**REFILL)

    for step, metrics in enumerate(steps, start=1):
        own = [group for group in groups if group["step"] == step]
        trained = [group for group in own if group["is_trained"]]
        share = 1 - len(trained) / len(own)
        assert metrics["sampling/frac_dropped"] == pytest.approx(share)
        assert len({group["prompt_index"] for group in own}) == len(own)
        assert all(group["signal"] == "mixed" for group in trained)
        sizes = [abs(c["advantage"]) for g in trained for c in g["completions"]]
        assert metrics["advantage/abs_mean"] == pytest.approx(sum(sizes) / len(sizes))
        for group in own:
            if not group["is_trained"]:
                assert {c["advantage"] for c in group["completions"]} == {0.0}
    assert max(metrics["sampling/num_rounds"] for metrics in steps) > 1


def test_staleness_counts_the_updates_before(tell):
    for optim, expected in (
        ({}, 0.0),
        ({"updates_per_batch": 3}, 1.0),
        ({"updates_per_batch": 2, "minibatches": 2}, 1.5),
    ):
        steps, _ = tell(optim=optim)

        assert {step["staleness/mean"] for step in steps} == {expected}


def test_the_engine_is_compared_with_the_trainer_before_the_weights_move(tell):
    for old in ("policy", "sampling"):
        steps, _ = tell(
            loss={"old_logprobs": old},
            optim={"learning_rate": 0.05, "updates_per_batch": 2, "minibatches": 2},
        )

        assert max(step["mismatch/max"] for step in steps) < 1e-4
        assert max(step["ratio/max"] for step in steps) > 1.01


def test_the_kl_weight_is_logged_where_one_is_in_force(tell):
    without, _ = tell()
    fixed, _ = tell(loss={"kl_coef": 0.2})
    target = {"kl_coef": 0.2, "kl_target": 50.0, "kl_horizon": 160}
    falling, _ = tell(loss=target)

    assert all("kl/coef" not in step for step in without)
    assert [step["kl/coef"] for step in fixed] == [0.2] * 3
    # the KL is nearly 0: each step of 16 completions takes 0.2 · 16 / 160 off
    assert [step["kl/coef"] for step in falling] == pytest.approx(
        [0.2, 0.2 * 0.98, 0.2 * 0.98**2]
    )


@pytest.mark.parametrize("surrogate", ["clip", "reinforce"])
def test_every_minibatch_is_compared_with_the_policy_before_the_first_update(
    surrogate, model_folder, rows_path, tmp_path, monkeypatch
):
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watch(*given: Any, **named: Any) -> Any:
        logprobs, old = given[0].detach(), given[1]
        seen.append((logprobs, old))
        return objective(*given, **named)

    monkeypatch.setattr(trainer.grpo, "objective", watch)
    train(
        tmp_path,
        model_folder,
        rows_path,
        loss={"surrogate": surrogate},
        optim={
            "num_steps": 1,
            "learning_rate": 0.05,
            "minibatches": 2,
            "updates_per_batch": 2,
            "micro_batch_tokens": 100_000,
        },
    )

    (first, old), (second, old_second), (again, old_again), _ = seen
    assert torch.equal(first, old)
    assert torch.equal(old_again, old)
    assert not torch.equal(again, old)
    moved = not torch.equal(second, old_second)
    # REINFORCE has no ratio, so no pass is spent on it
    assert moved == (surrogate == "clip")


def test_old_log_probs_are_those_of_the_starting_weights(
    model_folder, rows_path, tmp_path, monkeypatch
):
    start = load_policy(ModelConfig(path=str(model_folder), device="cpu"))
    checked: list[float] = []
    add_gradients = trainer.grpo.add_gradients

    def watch(
        policy: Any, optimizer: Any, micros: Any, *given: Any, **kept: Any
    ) -> Any:
        result = add_gradients(policy, optimizer, micros, *given, **kept)
        for micro in micros:
            with torch.no_grad():
                expected, _ = start.logprobs(micro, temperature=1.0)
            checked.append((micro.old_logprobs - expected).abs().max().item())
        return result

    monkeypatch.setattr("trainer.grpo.add_gradients", watch)

    train(
        tmp_path,
        model_folder,
        rows_path,
        optim={"num_steps": 1, "learning_rate": 0.05, "minibatches": 4},
    )

    assert len(checked) >= 4
    assert max(checked) < 1e-5
