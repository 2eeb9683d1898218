"""Scoring for a page happens elsewhere, and ends in time."""

import json
import os

import pytest

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.rewards import checks, trial
from dashboard.rewards.checks import check_rows
from dashboard.rewards.trial import (
    BUSY,
    Trial,
    try_groups,
    try_samples,
)
from tests.dashboard.completions.factories import store_dataset
from tests.trainer.rewards.judge_server import judge_server
from trainer.rewards.judge import TIMED_OUT, limited_to
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import Score, score_all
from trainer.rewards.scoring_process import reply_of
from trainer.rewards.spec import Recipe


def recipe(*rules: tuple[str, dict[str, object]]) -> Recipe:
    tree = [{"name": kind, "kind": kind, "params": params} for kind, params in rules]
    return Recipe.model_validate({"rules": tree})


NUMERIC = recipe(("numeric_answer", {}), ("length", {"maximum": 3}))
SAMPLES = [Sample("?", text, "4") for text in ("4", "five", "", "\udce2")]


def test_scores_are_the_engines_and_come_with_their_times():
    trials = try_samples(NUMERIC, SAMPLES, seconds=60)

    assert [each.score for each in trials] == score_all(NUMERIC, SAMPLES)
    assert all(
        set(each.rule_seconds) == {"numeric_answer", "length"} for each in trials
    )
    assert all(
        0 < sum(each.rule_seconds.values()) <= each.seconds < 5 for each in trials
    )


def test_completions_of_a_row_are_compared():
    agree = recipe(("majority", {}))
    groups = [[Sample("?", text, None) for text in texts] for texts in ("112", "3")]

    trials = try_groups(agree, groups, seconds=60)

    assert [[each.score for each in group] for group in trials] == [
        score_all(agree, group) for group in groups
    ]
    assert [each.score and each.score.total for each in trials[0]] == [1, 1, 0]
    assert all(each.rule_seconds["majority"] > 0 for group in trials for each in group)


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_completion_continues_what_its_row_begins(is_chat):
    chat = [{"role": "assistant", "content": "<answer>"}]
    chat = [{"role": "user", "content": "2+2?"}, *chat] if is_chat else chat
    row = DatasetRow(prompt=json.dumps(chat), is_chat=True, answer="4", columns={})
    sample = trial.as_sample(row, "4</answer>")

    (tried,) = try_samples(recipe(("exact_answer", {})), [sample], seconds=60)

    assert tried.score
    assert tried.score.total == 1
    assert sample.prompt == ("2+2?" if is_chat else "")


def test_models_are_not_called_for_row_checks(monkeypatch):
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", "127.0.0.1")
    with judge_server() as judging:
        judged = recipe(("llm_judge", {"base_url": judging.url, "model": "m"}))
        (tried,) = try_samples(judged, SAMPLES[:1], seconds=60)

    assert tried.score
    assert "not called" in tried.score.errors["llm_judge"]
    assert judging.asked == []


def test_a_rule_that_hangs_times_out(monkeypatch):
    try_samples(NUMERIC, SAMPLES, seconds=60)  # started, so that only waiting counts
    (child,) = [each._child for each in trial._processes if each._child]
    os.kill(child.pid, 19)  # SIGSTOP: it never answers

    trials = try_samples(NUMERIC, SAMPLES, seconds=0.3)

    assert {each.problem for each in trials} == {TIMED_OUT}
    # The next trial has a process again.
    assert all(each.score for each in try_samples(NUMERIC, SAMPLES, seconds=60))


def test_a_dead_process_is_replaced():
    try_samples(NUMERIC, SAMPLES, seconds=60)
    (child,) = [each._child for each in trial._processes if each._child]
    os.kill(child.pid, 9)

    trials = try_samples(NUMERIC, SAMPLES, seconds=60)

    # A dead process is noticed and replaced, or the trial has a problem.
    assert all(each.score or each.problem for each in trials)
    assert all(each.score for each in try_samples(NUMERIC, SAMPLES, seconds=60))


def test_busy_processes_are_reported(monkeypatch):
    taken = [trial._idle.get(timeout=1) for _ in range(trial.NUM_PROCESSES)]
    try:
        trials = try_samples(NUMERIC, SAMPLES, seconds=0.05)
    finally:
        for each in taken:
            trial._idle.put(each)

    assert {each.problem for each in trials} == {BUSY}


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    answers = ["4", "five", "4", "4"]
    rows = [Row(prompt=f"row {n}", answer=text) for n, text in enumerate(answers)]
    return store_dataset(shared_team, rows, name="Messy")


def test_references_that_cannot_be_read_are_counted(version):
    found = check_rows(recipe(("numeric_answer", {})), version)

    (reference,) = [each for each in found if each.kind == "reference"]
    assert "1 of 4" in reference.sentence
    assert reference.positions == (1,)


def test_a_guess_that_scores_high_is_found(version):
    found = check_rows(recipe(("numeric_answer", {})), version)

    (guess,) = [each for each in found if each.kind == "trivial"]
    assert "“4”" in guess.sentence
    # 1 on each of the three rows that can be judged
    assert guess.short.endswith("1 of 1")


def test_rows_that_ran_out_of_time_are_no_finding(version, monkeypatch):
    def time_out(
        recipe: Recipe, groups: list[list[Sample]], **_: object
    ) -> list[list[Trial]]:
        done = try_groups(recipe, groups[:1], seconds=60)
        return done + [[Trial(None, problem=TIMED_OUT)] * len(g) for g in groups[1:]]

    monkeypatch.setattr(checks, "try_groups", time_out)
    monkeypatch.setattr(checks, "_try_baselines", lambda *_: ([], False))

    (note,) = check_rows(recipe(("numeric_answer", {})), version)

    assert (note.kind, note.positions) == ("unchecked", ())
    assert "1 of 4" in note.short


def test_a_rule_that_runs_out_of_the_pages_time_is_not_scored():
    def late(*_: object) -> list[Score]:
        return [Score(None, {"a": None}, {"a": "No time was left."})]

    with limited_to(0):
        reply = reply_of(NUMERIC, [SAMPLES[0]], late, [])
    with limited_to(60):
        failed = reply_of(NUMERIC, [SAMPLES[0]], late, [])

    assert reply == {"problem": TIMED_OUT}
    assert failed["scores"][0]["errors"]


def test_an_empty_completion_that_scores_high_is_found(version):
    found = check_rows(recipe(("length", {"maximum": 100})), version)

    assert "trivial" in {each.kind for each in found}


def test_checks_of_a_version_are_cached(version, monkeypatch):
    first = check_rows(NUMERIC, version)
    monkeypatch.setattr(checks, "_check", None)

    assert check_rows(NUMERIC, version) == first
