"""A judge that answers 429, 500, garbage, or not at all, over real HTTP."""

import os
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from dashboard.runs.models import RunState
from dashboard.runs.queries import run_directory
from tests.faults.attempts import Once, run_attempt
from tests.faults.forks import write_run
from tests.faults.tiny import config_tree, judged_by, read_log
from tests.trainer.rewards.judge_server import (
    Judging,
    cut_off,
    hang_up,
    judge_server,
    slow,
    status,
)

pytestmark = pytest.mark.faults
NUM_COMPLETIONS = 3 * 4 * 4
PASSING = [
    status(429, Retry_After="0.05"),
    status(500),
    slow(1),
    status(200, b"<html>busy</html>"),
    hang_up,
    cut_off,
    status(503),
    status(200, b'{"choices": []}'),
]


@pytest.fixture
def judging() -> Iterator[Judging]:
    with judge_server() as server:
        yield server


def allowed(judging: Judging) -> dict[str, str]:
    """The environment in which it may be asked."""
    return {"COHORT_JUDGE_HOSTS": judging.url.split("/")[2]}


def write(folder: Path, model: Path, judging: Judging, **params: Any) -> Path:
    tree = config_tree(model, num_steps=3)
    tree |= {"reward": judged_by(judging, **params), "evaluation": {"every_steps": 0}}
    return write_run(folder, tree)


def log_of(folder: Path) -> str:
    return (folder / "trainer.log").read_text()


def completions(folder: Path) -> list[dict[str, Any]]:
    events = read_log(folder / "out" / "events.jsonl")
    groups = [event for event in events if event["type"] == "group_scored"]
    found = [
        row | {"prompt": group["prompt"]}
        for group in groups
        for row in group["completions"]
    ]
    assert len(found) == NUM_COMPLETIONS
    return found


def test_temporary_errors_are_retried_and_every_completion_is_scored(
    trainers, judging, tiny_model, tmp_path
):
    judging.faults = list(PASSING)
    folder = write(tmp_path, tiny_model, judging)

    assert trainers.run(folder, env=allowed(judging)) == 0, log_of(folder)

    scored = completions(folder)
    assert [row["reward"] for row in scored] == pytest.approx([6 / 9] * NUM_COMPLETIONS)
    assert judging.faults == []
    # What is written twice of one prompt is one question.
    num_questions = len({(row["prompt"], row["text"]) for row in scored})
    assert len(judging.asked) == num_questions + len(PASSING)


def test_permanent_errors_leave_no_score_after_the_retries(
    trainers, judging, tiny_model, tmp_path
):
    judging.faults = [status(500)] * 1_000
    folder = write(tmp_path, tiny_model, judging, max_tries=2)

    assert trainers.run(folder, env=allowed(judging)) == 0, log_of(folder)

    rows = completions(folder)
    assert {row["reward"] for row in rows} == {None}
    assert all("500" in row["errors"]["judge"] for row in rows)


def test_a_resumed_run_reuses_replies_of_the_judge(
    launch_tiny, data_folder, judging, monkeypatch
):
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", judging.url.split("/")[2])
    run = launch_tiny(num_steps=24, reward=judged_by(judging, timeout_seconds=60))
    kill = Once(run, data_folder, step=22, act=lambda pid: os.kill(pid, SIGKILL))
    assert run_attempt(run, act=kill).state == RunState.QUEUED

    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=2).from_step == 20
    replies = run_directory(run.id).path.glob("epochs/*/judges/*")
    questions = [line["question"] for path in replies for line in read_log(path)]
    assert len(set(questions)) == len(questions) > 0


def test_a_spent_budget_ends_the_requests(trainers, judging, tiny_model, tmp_path):
    folder = write(tmp_path, tiny_model, judging, budget_calls=10)

    assert trainers.run(folder, env=allowed(judging)) == 0, log_of(folder)

    assert len(judging.asked) == 10
    unscored = [row for row in completions(folder) if row["reward"] is None]
    assert unscored
    assert all("budget" in row["errors"]["judge"].lower() for row in unscored)
