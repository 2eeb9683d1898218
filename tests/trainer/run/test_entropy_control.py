"""Runs with entropy control: its choices are those of the whole minibatch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import trainer.grpo
from tests.trainer.tiny import config_tree, only, read_events, run_trainer, write_config
from trainer.algorithm.entropy import choose_by_covariance, high_entropy

OPTIM = {"num_steps": 4, "minibatches": 2, "updates_per_batch": 2}
COVARIANCE = {"covariance_share": 0.1, "covariance_low": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "top entropy": {"top_entropy_share": 0.25},
    "top entropy, no old policy": {
        "top_entropy_share": 0.25,
        "old_logprobs": "sampling",
        "mask_end_token": True,
    },
    "clip": {"covariance": "clip", **COVARIANCE},
    "kl": {"covariance": "kl", **COVARIANCE},
    "target": {"entropy_target": 2.9},
}


@pytest.fixture
def run(model_folder, rows_path, tmp_path, monkeypatch):
    """Metrics of a run's steps, and what was chosen, in order."""
    choices: list[np.ndarray] = []
    for choose in (high_entropy, choose_by_covariance):

        def noted(*given, choose=choose, **named):
            choices.append(choose(*given, **named))
            return choices[-1]

        monkeypatch.setattr(trainer.grpo, choose.__name__, noted)

    def measured(kind, **optim):
        choices.clear()
        # a rate at which rounding stays rounding
        optim = OPTIM | {"learning_rate": 1e-4} | optim
        evaluation = {"every_steps": 0}
        tree = config_tree(
            model_folder,
            rows_path,
            loss=SETTINGS[kind],
            optim=optim,
            evaluation=evaluation,
        )
        out = tmp_path / str(optim.get("micro_batch_tokens"))
        done = run_trainer("run", write_config(tmp_path, tree), "--out", out)
        assert done.returncode == 0, done.stderr
        events = only(read_events(out / "events.jsonl"), "step_finished")
        return [event["metrics"] for event in events], list(choices)

    return measured


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_size_of_a_micro_batch_changes_no_choice(kind, run):
    metrics, choices = run(kind, micro_batch_tokens=64)
    alike, expected = run(kind, micro_batch_tokens=100_000)

    assert [c.tolist() for c in choices] == [c.tolist() for c in expected]
    for step, like in zip(metrics, alike, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reward/mean"):
            assert step[name] == pytest.approx(like[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ["top entropy", "top entropy, no old policy"])
def test_a_share_of_each_minibatch_is_kept_through_a_batch(kind, run):
    metrics, choices = run(kind)

    assert len(choices) == OPTIM["num_steps"] * OPTIM["minibatches"]
    for step in metrics:
        assert step["entropy/frac_kept"] == pytest.approx(0.25, abs=0.02)


def test_each_update_draws_again_from_the_covariances(run):
    metrics, choices = run("clip")

    assert len(choices) == OPTIM["num_steps"] * 4
    # a minibatch may have fewer covariances within the bounds
    assert all(chosen.sum() <= len(chosen) // 10 for chosen in choices)
    assert any(chosen.sum() == len(chosen) // 10 for chosen in choices)
    assert any((a != b).any() for a, b in zip(choices[::4], choices[2::4], strict=True))
    kept = [step["entropy/frac_kept"] for step in metrics]
    means = [
        1 - np.concatenate(choices[first : first + 4]).mean()
        for first in range(0, len(choices), 4)
    ]
    assert kept == pytest.approx(means)


def test_kl_cov_chooses_alike_in_each_pass_and_clips_nothing(run):
    metrics, choices = run("kl", learning_rate=1e-2)

    assert all((a == b).all() for a, b in zip(choices[::4], choices[2::4], strict=True))
    assert max(step["ratio/max"] for step in metrics) > 1.2
    assert {step["clip/frac"] for step in metrics} == {0.0}


def test_the_entropy_weight_follows_the_entropy_of_the_step_before(run):
    metrics, _ = run("target", learning_rate=1e-2, updates_per_batch=1)

    coef = 0.0
    for before, after in pairwise(metrics):
        is_low = before["entropy"] < SETTINGS["target"]["entropy_target"]
        coef = coef + 0.005 if is_low else max(coef - 0.005, 0.0)
        assert after["entropy/coef"] == pytest.approx(coef if is_low else 0.0)
    assert metrics[0]["entropy/coef"] == 0.0
    assert {step["entropy/coef"] > 0 for step in metrics[1:]} == {True, False}
