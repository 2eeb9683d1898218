"""A step of which too many scores failed is not trained on, and the run pauses."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainer.grpo
from tests.trainer import faults
from tests.trainer.run.test_resume import story
from tests.trainer.scored import make_group
from tests.trainer.several import run_several
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.errors import (
    MAX_ERROR_CHARS,
    ScoresMissing,
    check_scores,
    common_faults,
    error_share,
)
from trainer.rewards.rule import NotApplicable, Sample, Unscorable
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import Score
from trainer.types import Group

LENGTH = RULES["length"]
LOST = "The grader was lost."
FINE = Score(1.0, {"a": 1.0, "b": 0.0}, {})
FAILED = Score(1.0, {"a": 1.0, "b": None}, {"b": LOST})
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
def test_not_applicable_scores_are_not_errors(scores, share):
    assert error_share([group(*scores)]) == share


def test_more_than_the_limit_is_reported_with_its_most_frequent_reason():
    groups = [group(FINE, FAILED), group(FAILED, FAILED)]

    check_scores(groups, limit=0.375, step=7)
    with pytest.raises(ScoresMissing) as reported:
        check_scores(groups, limit=0.37, step=7)

    text = str(reported.value)
    assert text.startswith("38% ")
    assert "step 7" in text
    assert "allows 37%" in text
    (fault,) = reported.value.faults
    assert (fault.rule, fault.error, fault.count) == ("b", LOST, 3)


def test_the_commonest_errors_are_reported_first_and_cut():
    scores = [
        Score(None, {"a": None}, {"a": f"{chr(97 + n)} " + "x" * 2_000})
        for n in range(9)
        for _ in range(n + 1)
    ]

    faults = common_faults([group(*scores)])

    assert [fault.count for fault in faults] == [9, 8, 7, 6, 5]
    assert {len(fault.error) for fault in faults} == {MAX_ERROR_CHARS}


def test_errors_that_differ_in_numbers_are_one():
    errors = ["54 tokens (line 4)", "no answer", "9 tokens (line 4)", "54.5 tokens"]
    scores = [Score(None, {"a": None}, {"a": error}) for error in errors]

    faults = common_faults([group(*scores)])

    assert [(fault.error, fault.count) for fault in faults] == [
        ("54 tokens (line 4)", 2),
        ("no answer", 1),
        ("54.5 tokens", 1),
    ]


@pytest.fixture
def fail_from(monkeypatch) -> Callable[[int, type], None]:
    """From a step on, the length rule gives no score."""

    def fail(first: int, error: type[Unscorable]) -> None:
        now = 0
        sample_batch = trainer.grpo.sample_batch

        def counted(run: Any, phase: Any, step: int, *given: Any, **named: Any) -> Any:
            nonlocal now
            now = step
            return sample_batch(run, phase, step, *given, **named)

        def score(sample: Sample, params: Any) -> float:
            if now >= first:
                raise error(LOST)
            assert LENGTH.score is not None
            return LENGTH.score(sample, params)

        monkeypatch.setattr(trainer.grpo, "sample_batch", counted)
        monkeypatch.setitem(RULES, "length", replace(LENGTH, score=score))

    return fail


def config(
    folder: Path,
    model: Path,
    rows: Path,
    *,
    one_step_off: bool = False,
    **reward: Any,
) -> Path:
    length = {"name": "size", "kind": "length", "params": {"soft_edge": 99}}
    tree = config_tree(
        model,
        rows,
        reward={"recipe": {"rules": [length]}, **reward},
        rollout={"one_step_off": one_step_off},
        loss={"importance_correction": "token_truncate" if one_step_off else None},
        optim={"num_steps": 5, "micro_batch_tokens": 100_000},
        checkpoint={"every_steps": 2, "keep_last": 10},
    )
    return write_config(folder, tree)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_folder, rows_path) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    out = folder / "out"
    done = run_trainer("run", config(folder, model_folder, rows_path), "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def assert_same_end(out: Path, undisturbed: Path) -> None:
    """Bit for bit: weights, moments, groups and metrics."""
    (mine,) = (out / "checkpoints").glob("step-000005-attempt-*")
    theirs = undisturbed / "checkpoints" / "step-000005-attempt-1"
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    logs = [*sorted(out.glob("events-*.jsonl")), out / "events.jsonl"]
    assert story(*logs) == story(undisturbed / "events.jsonl")


def test_the_run_pauses_with_a_checkpoint_and_resumes_exactly(
    model_folder, rows_path, tmp_path, fail_from, monkeypatch, undisturbed
):
    written = config(tmp_path, model_folder, rows_path)
    fail_from(4, Unscorable)

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 4
    assert f'rule "size": {LOST}' in done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [1, 2, 3]
    assert [e["step"] for e in only(events, "checkpoint_saved")] == [2, 3]
    paused = events[-1]
    assert (paused["type"], paused["step"]) == ("run_paused", 3)
    assert paused["reason"].startswith("100% ")
    assert "step 4" in paused["reason"]
    assert (paused["share"], paused["limit"]) == (1.0, 0.2)
    assert paused["checkpoint"] == "step-000003-attempt-1"
    (fault,) = paused["faults"]
    assert (fault["rule"], fault["error"]) == ("size", LOST)

    monkeypatch.setitem(RULES, "length", LENGTH)
    again = run_trainer("run", written, "--out", tmp_path / "out", "--resume")

    assert again.returncode == 0
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [4, 5]
    assert_same_end(tmp_path / "out", undisturbed)


@pytest.mark.slow
def test_a_run_that_pauses_at_its_first_step_begins_again(
    model_folder, rows_path, tmp_path, fail_from, monkeypatch, undisturbed
):
    written = config(tmp_path, model_folder, rows_path)
    fail_from(1, Unscorable)

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 4
    paused = read_events(tmp_path / "out" / "events.jsonl")[-1]
    assert (paused["step"], paused["checkpoint"]) == (0, None)

    monkeypatch.setitem(RULES, "length", LENGTH)
    again = run_trainer("run", written, "--out", tmp_path / "out", "--resume")

    assert again.returncode == 0
    assert_same_end(tmp_path / "out", undisturbed)


@pytest.mark.slow
def test_a_batch_scored_ahead_does_not_pause_the_run_again(
    model_folder, rows_path, tmp_path, fail_from, monkeypatch
):
    written = config(tmp_path, model_folder, rows_path, one_step_off=True)
    fail_from(3, Unscorable)  # sampled beside step 2, whose checkpoint holds it

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 4
    (saved,) = (tmp_path / "out" / "checkpoints").glob("step-000002*")
    assert (saved / "ahead").is_dir()

    monkeypatch.setitem(RULES, "length", LENGTH)
    again = run_trainer("run", written, "--out", tmp_path / "out", "--resume")

    assert again.returncode == 0
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [3, 4, 5]


@pytest.mark.slow
def test_several_processes_pause_as_one(model_folder, rows_path, tmp_path):
    written = config(tmp_path, model_folder, rows_path)

    codes, output = run_several(
        2,
        *("run", written, "--out", tmp_path / "out"),
        output=tmp_path / "log",
        before=faults.scores_fail_from_step_three,
    )

    assert codes == [4, 4], output
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["step"] for e in only(events, "step_finished")] == [1, 2]
    (paused,) = only(events, "run_paused")
    assert paused["checkpoint"] == "step-000002-attempt-1"
    assert output.count("--resume") == 1
    assert sum(fault["count"] for fault in paused["faults"]) == 8


@pytest.mark.parametrize(("error", "limit"), [(NotApplicable, 0.2), (Unscorable, 1.0)])
def test_the_run_continues_where_nothing_failed_or_all_may(
    model_folder, rows_path, tmp_path, fail_from, error, limit
):
    fail_from(2, error)
    written = config(tmp_path, model_folder, rows_path, max_error_share=limit)

    done = run_trainer("run", written, "--out", tmp_path / "out")

    assert done.returncode == 0
