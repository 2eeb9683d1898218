"""Advice on runs of the engine: with weights of now, and with stale ones."""

import pytest

from dashboard.analysis.mismatch.advice import read_lab
from dashboard.completions.mismatch import pack_mismatch
from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from tests.dashboard.completions.factories import (
    START,
    make_config,
    make_group,
    make_run,
)
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from trainer.events import MismatchMeasured, TokensMeasured


@pytest.fixture
def train(team, tmp_path):
    """Train a tiny model, and store what it measured."""

    def train(**parts):
        rows = write_rows(tmp_path / "rows.jsonl")
        model = write_model(tmp_path / "model")
        rollout = parts.pop("rollout", {})
        size = {"prompts_per_step": 8, "group_size": 8, "max_new_tokens": 24}
        tree = config_tree(
            model,
            rows,
            rollout=size | rollout,
            evaluation={"every_steps": 0},
            logging={"tokens_every_steps": 1},
            **parts,
        )
        done = run_trainer(
            "run", write_config(tmp_path, tree), "--out", tmp_path / "out"
        )
        assert done.returncode == 0, done.stderr
        events = read_events(tmp_path / "out" / "events.jsonl")
        config = make_config(rollout=rollout, loss=parts.get("loss", {}))
        run = make_run(team, config=config)
        device = only(events, "run_started")[0]["device"]
        run.events.create(
            attempt=1,
            line=1,
            seq=1,
            step=0,
            time=START,
            type="run_started",
            body={"device": device},
        )
        for event in only(events, "mismatch_measured"):
            pack_mismatch(MismatchMeasured.model_validate(event), run.pk).save()
        for event in only(events, "tokens_measured"):
            group = make_group(run, event["step"], prompt_index=event["prompt_index"])
            values = TokensMeasured.model_validate(event).completions
            GroupTokens.objects.create(group=group, packed=pack_tokens(values))
        return run

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
