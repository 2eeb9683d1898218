"""Advice on runs of the engine: with weights of now, and with stale ones."""

import pytest

from dashboard.analysis.mismatch.advice import read_lab
from tests.dashboard.analysis.mismatch.trained import train_and_store
from tests.trainer.tiny import write_model


@pytest.fixture
def train(team, tmp_path):
    """Train a tiny model, and store what it measured."""

    def train(rollout=None, **parts):
        model = write_model(tmp_path / "model")
        return train_and_store(team, tmp_path, model, rollout or {}, **parts)

    return train


def test_weights_of_now_need_no_correction(train):
    lab = read_lab(train(optim={"num_steps": 3, "learning_rate": 1e-2}))

    assert lab.advice.kind == "rounding"
    assert lab.evidence.rounding == 1e-4
    assert lab.evidence.mean < 1e-6
    for row in lab.rows:
        assert (row.shares.changed, row.shares.masked) == (0.0, 0.0)
        assert row.cosine == pytest.approx(1)
        assert row.kept_positive == pytest.approx(1, abs=1e-4)


def test_weights_of_some_updates_ago_are_stale(train):
    lab = read_lab(
        train(
            rollout={"one_step_off": True},
            loss={"importance_correction": "token_truncate", "importance_cap": 10.0},
            optim={"num_steps": 5, "updates_per_batch": 4, "learning_rate": 1e-2},
        )
    )

    assert lab.advice.kind == "stale"
    assert lab.evidence.age == 4
    assert lab.advice.alarm is None
    today = lab.rows[0]
    assert (today.key, today.cosine) == ("today", pytest.approx(1))
    none = next(row for row in lab.rows if row.key == "none")
    assert none.cosine < 1


def test_another_temperature_is_not_comparable(train):
    lab = read_lab(train(rollout={"logprob_temperature": 0.7}, optim={"num_steps": 1}))

    assert lab.advice.kind == "incomparable"
    assert lab.evidence.num_tokens == 0
