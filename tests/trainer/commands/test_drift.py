"""`python -m trainer drift`: engine and trainer compared with a learning rate of 0."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny import config_tree, run_trainer, write_config
from trainer.commands.selfcheck import Gaps, verdict
from trainer.rollout import builtin
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import OnGroup, Request, SamplingParams
from trainer.types import Rollout


def gaps(*means: float) -> list[Gaps]:
    return [Gaps(mean=mean, p99=mean, max=mean, num_tokens=1) for mean in means]


def test_gaps_are_absolute_differences():
    found = Gaps.of(torch.tensor([0.1, -0.3, 0.0, 0.2]))

    assert found.mean == pytest.approx(0.15)
    assert found.max == found.p99 == pytest.approx(0.3)
    assert found.num_tokens == 4


def test_small_steady_differences_pass():
    assert verdict(gaps(9e-5, 5e-5, 9e-5), limit=1e-4) is None


def test_a_single_step_above_the_limit_is_drift():
    complaint = verdict(gaps(0.0, 2e-4, 0.0), limit=1e-4)

    assert complaint is not None
    assert "0.0002 nats" in complaint


def test_differences_that_grow_are_drift_though_they_are_small():
    complaint = verdict(gaps(1e-6, 2e-5, 4e-5), limit=1e-4)

    assert complaint is not None
    assert "grew from 1e-06 to 4e-05" in complaint


def test_numbers_that_are_none_are_drift():
    assert verdict(gaps(float("nan")), limit=1e-4) is not None


def test_this_engine_and_this_trainer_agree(model_folder, rows_path, tmp_path, capsys):
    tree = config_tree(model_folder, rows_path, rollout={"temperature": 0.7})

    done = run_trainer("drift", write_config(tmp_path, tree), "--steps", 3)

    reported = capsys.readouterr().out.splitlines()
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in reported[:3]] == [
        "step 1",
        "step 2",
        "step 3",
    ]
    assert reported[3].startswith("ok:")


def test_a_configured_logprob_temperature_is_not_drift(
    model_folder, rows_path, tmp_path
):
    rollout = {"temperature": 0.7, "logprob_temperature": 1.0}
    tree = config_tree(model_folder, rows_path, rollout=rollout)

    done = run_trainer("drift", write_config(tmp_path, tree), "--steps", 1)

    assert done.returncode == 0, done.stderr


def test_a_chain_of_phases_is_compared_as_it_begins(model_folder, rows_path, tmp_path):
    pairs = {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce", "aggregation": "sequence_mean_token_sum"},
    }
    tree = config_tree(model_folder, rows_path, optim={"num_steps": 2})
    tree["phases"] = [
        {"name": "grpo", "num_steps": 1},
        {"name": "dpo", "num_steps": 1, "changes": pairs},
    ]

    done = run_trainer("drift", write_config(tmp_path, tree), "--steps", 1)

    assert done.returncode == 0, done.stderr


def test_an_engine_at_another_temperature_is_found_out(
    model_folder, rows_path, tmp_path, monkeypatch, capsys
):
    sample = TransformersEngine.sample

    def warmer(
        self: TransformersEngine,
        requests: Sequence[Request],
        params: SamplingParams,
        **_: OnGroup,
    ) -> list[tuple[Rollout, ...]]:
        return sample(self, requests, replace(params, temperature=1.1))

    monkeypatch.setattr(TransformersEngine, "sample", warmer)
    config = write_config(tmp_path, config_tree(model_folder, rows_path))

    done = run_trainer("drift", config, "--steps", 1)

    assert done.returncode == 1
    assert "drift: " in capsys.readouterr().out


def test_an_engine_that_a_run_would_refuse_is_measured(
    model_folder, rows_path, tmp_path, monkeypatch, capsys
):
    sample = TransformersEngine.sample

    def shifted(
        self: TransformersEngine,
        requests: Sequence[Request],
        params: SamplingParams,
        **_: OnGroup,
    ) -> list[tuple[Rollout, ...]]:
        groups = sample(self, requests, params)
        return [tuple(_less(rollout, 0.5) for rollout in group) for group in groups]

    monkeypatch.setattr(TransformersEngine, "sample", shifted)
    monkeypatch.setattr(builtin, "logprob_gap", lambda *_, **__: 0.5)
    config = write_config(tmp_path, config_tree(model_folder, rows_path))

    done = run_trainer("drift", config, "--steps", 2)

    printed = capsys.readouterr().out
    assert done.returncode == 1
    assert "step 1" in printed
    assert "step 2" in printed
    assert "mean 0.5 " in printed


def test_an_engine_that_loses_something_at_each_sync_is_found_out(
    model_folder, rows_path, tmp_path, monkeypatch, capsys
):
    lost = 0.0
    sample = TransformersEngine.sample

    def shifted(
        self: TransformersEngine,
        requests: Sequence[Request],
        params: SamplingParams,
        **_: OnGroup,
    ) -> list[tuple[Rollout, ...]]:
        groups = sample(self, requests, params)
        return [tuple(_less(rollout, lost) for rollout in group) for group in groups]

    def sync(self: TransformersEngine) -> None:
        nonlocal lost
        lost += 2e-5

    monkeypatch.setattr(TransformersEngine, "sample", shifted)
    monkeypatch.setattr(TransformersEngine, "sync_weights", sync)
    config = write_config(tmp_path, config_tree(model_folder, rows_path))

    done = run_trainer("drift", config, "--steps", 4)

    assert done.returncode == 1
    assert "no weight changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--steps", 0], "at least 1"), ([], "Model folder")],
)
def test_invalid_drift_arguments_are_refused(arguments, sentence, rows_path, tmp_path):
    config = write_config(tmp_path, config_tree(Path("/nowhere"), rows_path))

    done = run_trainer("drift", config, *arguments)

    assert done.returncode == 2
    assert sentence in done.stderr


def _less(rollout: Rollout, nats: float) -> Rollout:
    (turn,) = rollout.turns
    assert turn.logprobs is not None
    lower = tuple(value - nats for value in turn.logprobs)
    return replace(rollout, turns=(replace(turn, logprobs=lower),))
