"""A step of which too many scores failed is not trained on, and the run ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainer.step
from tests.trainer.scored import make_group
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.errors import ScoresMissing, check_scores, error_share
from trainer.groups import Group
from trainer.rewards.rules import RULES
from trainer.rewards.sample import NotApplicable, Sample, Unscorable
from trainer.rewards.scoring import Score

LENGTH = RULES["length"]
FINE = Score(1.0, {"a": 1.0, "b": 0.0}, {})
FAILED = Score(1.0, {"a": 1.0, "b": None}, {"b": "The grader was lost."})
NOTHING = Score(1.0, {"a": 1.0, "b": None}, {"b": "no answer"}, ["b"])


def group(*scores: Score) -> Group:
    return replace(make_group(*[1.0] * len(scores)), scores=scores)


@pytest.mark.parametrize(
    ("scores", "share"),
    [
        ([FINE, FINE], 0.0),
        ([FINE, FAILED], 0.25),
        ([NOTHING, NOTHING], 0.0),
        ([NOTHING, FAILED], 1 / 3),
        ([Score(None, {"a": None}, {"a": "no answer"}, ["a"])], 0.0),
    ],
)
def test_what_does_not_apply_is_no_error(scores, share):
    assert error_share([group(*scores)]) == share


def test_more_than_the_limit_is_told_with_its_most_frequent_reason():
    groups = [group(FINE, FAILED), group(FAILED, FAILED)]

    check_scores(groups, limit=0.375, step=7)
    with pytest.raises(ScoresMissing) as told:
        check_scores(groups, limit=0.37, step=7)

    text = str(told.value)
    assert "38% of the scores of step 7 failed" in text
    assert "allows 37%" in text
    assert '(3 times) rule "b": The grader was lost.' in text


@pytest.fixture
def fail_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, type], None]:
    """From a step on, the length rule gives no score."""

    def fail(first: int, error: type[Unscorable]) -> None:
        now = 0
        sample_batch = trainer.step.sample_batch

        def counted(training: Any, step: int, **named: Any) -> Any:
            nonlocal now
            now = step
            return sample_batch(training, step, **named)

        def score(sample: Sample, params: Any) -> float:
            if now >= first:
                raise error("The grader was lost.")
            assert LENGTH.score is not None
            return LENGTH.score(sample, params)

        monkeypatch.setattr(trainer.step, "sample_batch", counted)
        monkeypatch.setitem(RULES, "length", replace(LENGTH, score=score))

    return fail


def config(folder: Path, model: Path, rows: Path, **reward: Any) -> Path:
    length = {"name": "size", "kind": "length", "params": {"soft_edge": 99}}
    tree = config_tree(
        model,
        rows,
        reward={"recipe": {"rules": [length]}, **reward},
        optim={"num_steps": 5, "micro_batch_tokens": 100_000},
        checkpoint={"every_steps": 2, "keep_last": 10},
    )
    return write_config(folder, tree)


def test_the_run_ends_with_a_checkpoint_and_can_be_resumed(
    model_folder, rows_path, tmp_path, fail_from, monkeypatch
):
    written = config(tmp_path, model_folder, rows_path)
    fail_from(4, Unscorable)

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 1
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [1, 2, 3]
    assert [e["step"] for e in only(events, "checkpoint_saved")] == [2, 3]
    (failed,) = only(events, "run_failed")
    assert failed["error"].startswith("100% of the scores of step 4 failed")
    assert "The grader was lost." in failed["error"]

    monkeypatch.setitem(RULES, "length", LENGTH)
    again = run_trainer("run", written, "--out", tmp_path / "out", "--resume")

    assert again.returncode == 0
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [4, 5]


@pytest.mark.parametrize(("error", "limit"), [(NotApplicable, 0.2), (Unscorable, 1.0)])
def test_the_run_goes_on_where_nothing_failed_or_all_may(
    model_folder, rows_path, tmp_path, fail_from, error, limit
):
    fail_from(2, error)
    written = config(tmp_path, model_folder, rows_path, max_error_share=limit)

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 0
