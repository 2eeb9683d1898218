"""Log-probs may be taken at another temperature than completions are sampled at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.samples import cut, make_batch, update
from tests.trainer.tiny import config_tree
from trainer.config import OptimConfig, RunConfig
from trainer.model.optimizer import Optimizer
from trainer.model.policy import Policy


def config_of(model: Path, rows: Path, **rollout: Any) -> RunConfig:
    tree = config_tree(
        model, rows, rollout=rollout, loss={"surrogate": "reinforce", "kl_coef": 0.0}
    )
    return RunConfig.model_validate(tree)


def test_it_is_the_sampling_temperature_unless_it_is_set(
    model_folder: Path, rows_path: Path
) -> None:
    own = config_of(model_folder, rows_path, temperature=0.9)
    other = config_of(model_folder, rows_path, temperature=0.9, logprob_temperature=1.0)

    assert own.logprob_temperature == 0.9
    assert other.logprob_temperature == 1.0


@pytest.mark.parametrize("logprob_temperature", [None, 0.5, 2.0])
def test_the_loss_is_of_log_probs_at_that_temperature(
    policy: Policy,
    model_folder: Path,
    rows_path: Path,
    logprob_temperature: float | None,
) -> None:
    config = config_of(
        model_folder,
        rows_path,
        temperature=1.5,
        logprob_temperature=logprob_temperature,
    )
    batch = make_batch(6)
    micro_batches = cut(batch, policy, max_tokens=10_000)
    expected = 0.0
    with torch.no_grad():
        for micro in micro_batches:
            logprobs, _ = policy.logprobs(micro, temperature=logprob_temperature or 1.5)
            weighed = logprobs * micro.mask * micro.advantages[:, None]
            expected -= weighed.sum().item() / batch.totals.num_tokens

    result = update(
        policy,
        Optimizer(policy, OptimConfig()),
        micro_batches,
        totals=batch.totals,
        config=config,
        learning_rate=0.0,
    )

    assert result.loss == pytest.approx(expected, rel=1e-5)
    # the engine's log-probs, of another temperature, are not held against these
    has_mismatch = any("mismatch" in name for name in result.statistics.metrics())
    assert has_mismatch == (logprob_temperature is None)
