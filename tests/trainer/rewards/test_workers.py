"""Scoring in processes of its own: the same scores, and nothing else goes on or on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest

from tests.environment import child_environment, run_threads
from tests.trainer.rewards.bad_worker import LENGTH, misbehave
from tests.trainer.rewards.scores import BY_THEMSELVES, recipe_of
from tests.trainer.rewards.test_judge import ROOT, is_running, wait_until_gone
from tests.trainer.waiting import wait_until
from trainer.rewards import workers as module
from trainer.rewards.child import Child
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import judge
from trainer.rewards.spec import Recipe, RuleSpec
from trainer.rewards.workers import ScoringFailed, Workers

SHORT = recipe_of("length", maximum=4)
TWO = Recipe(
    rules=(
        RuleSpec(name="tags", kind="tag_count", weight=0.0),
        RuleSpec(name="size", kind="length"),
    )
)
TEXTS = ["", "a", "abcdef", "\ud800 half a pair", "<answer>42</answer>", "é\x00\n" * 40]
SCORE_AND_HANG = """
import sys
from trainer.rewards import workers
from trainer.rewards.child import Child
from tests.trainer.rewards.scores import BY_THEMSELVES, recipe_of
from trainer.rewards.rule import Sample
workers.Child = lambda _: Child("tests.trainer.rewards.bad_worker")
pool = workers.Workers(1)
pool.submit(recipe_of("length").rules, [Sample("", "fine")], name="row 0").result()
print(pool._all[0]._child.pid, flush=True)
hang = Sample("", f"hang {sys.argv[1]}")
pool.submit(recipe_of("length").rules, [hang], name="row 0").result()
"""


@pytest.fixture
def workers() -> Iterator[Workers]:
    pool = Workers(2)
    yield pool
    pool.close()


@pytest.fixture
def bad(monkeypatch) -> Iterator[Workers]:
    """A single worker, of the kind that does what a completion says."""
    monkeypatch.setattr(
        module, "Child", lambda _: Child("tests.trainer.rewards.bad_worker")
    )
    pool = Workers(1)
    yield pool
    pool.close()


def samples(*texts: str) -> list[Sample]:
    return [Sample("a prompt", text) for text in texts]


def pid_of(pool: Workers) -> int:
    (worker,) = pool._all
    assert worker._child is not None
    return worker._child.pid


@pytest.mark.slow
def test_every_rule_gives_the_scores_that_it_gives_here(workers):
    differ = []
    for kind in BY_THEMSELVES:
        rule = RULES[kind]
        params = rule.example_pass.params
        rules = (
            RuleSpec(name="a", kind=kind, weight=0.1, params=params),
            RuleSpec(name="b", kind="length", params={"soft_edge": 7}),
        )
        examples = [rule.example_pass.sample, rule.example_fail.sample]
        several = examples + [
            replace(examples[0], completion=text, answer=answer)
            for text in TEXTS
            for answer in (None, "42", ["41", "42"])
        ]

        found = workers.submit(rules, several, name="row 0").result()

        if found.scores != judge(rules, several) or found.seconds <= 0:
            differ.append(kind)

    assert differ == []


def test_columns_arrive_as_they_are(workers):
    recipe = recipe_of("equations", target_column="to")
    several = [Sample("", "1+2=3.", None, {"to": value}) for value in (3, "3", 3.5, [])]

    found = workers.submit(recipe.rules, several, name="row 0").result()

    assert found.scores == judge(recipe.rules, several)
    assert found.scores[3].errors  # the row's, in the same words


def test_what_the_row_begins_arrives(workers):
    recipe = recipe_of("exact_answer")
    begun = Sample("", "4</answer>", "4", begun="<answer>")

    found = workers.submit(recipe.rules, [begun], name="row 0").result()

    assert found.scores[0].rules["it"] == 1.0


def test_several_answers_arrive_as_they_are(workers):
    recipe = recipe_of("exact_answer")
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    several = [
        Sample("", f"<answer>{text}</answer>", ["a", "\ud800"], messages=[call])
        for text in ("a", "\ufffd", "c")
    ]

    found = workers.submit(recipe.rules, several, name="row 0").result()

    assert [score.rules["it"] for score in found.scores] == [1.0, 1.0, 0.0]


def test_the_last_of_several_answers_may_begin_as_the_time_ends(monkeypatch):
    waited: list[float] = []

    class Prompt:
        """A process that answers at once."""

        def __init__(self, _: str) -> None:
            self.is_alive = lambda: True
            self.write = self.kill = self.end = lambda *_: None

        def read(self, *, timeout_seconds: float) -> dict[str, list[object]]:
            waited.append(timeout_seconds)
            return {"scores": []}

    monkeypatch.setattr(module, "Child", Prompt)
    pool = Workers(1)
    recipe = recipe_of("math_verify", timeout_seconds=7)
    for answers in ("1", ["1", "2", "3"], None):
        sample = Sample("", "", answers)
        pool.submit(recipe.rules, [sample], name="row 0").exception()
    pool.close()

    _, one, three, none = waited
    assert (three - one, none - one) == (7 + module.GRACE_SECONDS, 0)


def test_groups_come_back_as_they_were_requested(workers):
    groups = [samples(*["a" * (n + k) for k in range(3)]) for n in range(8)]

    futures = [workers.submit(SHORT.rules, group, name="row 0") for group in groups]

    assert [future.result().scores for future in futures] == [
        judge(SHORT.rules, group) for group in groups
    ]


@pytest.mark.slow
def test_any_thread_may_ask(workers):
    found: list[float | None] = []

    def ask() -> None:
        scored = workers.submit(SHORT.rules, samples("abc"), name="row 0").result()
        found.append(scored.scores[0].rules["it"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    run_threads(threads)

    assert found == [1.0] * 4


def test_a_worker_has_no_torch_no_secrets_and_a_session_of_its_own(monkeypatch):
    monkeypatch.setenv("COHORT_SECRET_KEY", "a secret")
    pool = Workers(1)
    pool.submit(SHORT.rules, samples("a"), name="row 0").result()
    pid = pid_of(pool)

    maps = Path(f"/proc/{pid}/maps").read_text()
    environment = Path(f"/proc/{pid}/environ").read_text()

    assert "torch" not in maps
    assert "SECRET" not in environment
    assert os.getpgid(pid) != os.getpgid(0)  # which a supervisor sends SIGTERM to
    pool.close()


def test_a_rules_error_is_raised_by_the_caller(bad, monkeypatch):
    monkeypatch.setitem(RULES, "length", replace(LENGTH, score=misbehave))

    future = bad.submit(SHORT.rules, samples("a", "raise", "b"), name="row 0")

    with pytest.raises(AssertionError, match="length gave nan") as raised:
        future.result()
    assert raised.traceback[-1].name == "misbehave"
    again = bad.submit(SHORT.rules, samples("a", "b"), name="row 0").result()
    assert [score.rules["it"] for score in again.scores] == [1.0, 1.0]


@pytest.mark.slow
def test_a_worker_that_died_between_two_groups_is_replaced(bad):
    bad.submit(SHORT.rules, samples("a"), name="row 0").result()
    pid = pid_of(bad)

    os.kill(pid, signal.SIGKILL)
    found = bad.submit(SHORT.rules, samples("a", "abcdef"), name="row 0").result()

    assert found.scores == judge(SHORT.rules, samples("a", "abcdef"))
    assert pid_of(bad) != pid
    assert not is_running(pid)


def test_a_worker_killed_while_it_scores_costs_no_score(bad, tmp_path):
    once = f"die {tmp_path / 'killed'}"

    found = bad.submit(TWO.rules, samples("a", once, "b"), name="row 0").result()

    assert found.scores == judge(TWO.rules, samples("a", once, "b"))


def test_a_completion_that_kills_each_worker_is_named_with_its_rule(bad):
    future = bad.submit(TWO.rules, samples("a", "b", "die"), name="row 7 (line 8)")

    with pytest.raises(ScoringFailed) as failed:
        future.result()

    text = str(failed.value)
    assert 'Rule "size"' in text
    assert "3 of row 7 (line 8)" in text
    assert "begins 'die'" in text
    assert "SIGKILL" in text
    again = bad.submit(TWO.rules, samples("a"), name="row 8").result()
    assert again.scores == judge(TWO.rules, samples("a"))


def test_a_completion_that_takes_for_ever_is_named_with_its_rule(bad, monkeypatch):
    bad.submit(SHORT.rules, samples("a"), name="row 0").result()
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)

    future = bad.submit(TWO.rules, samples("a", "hang"), name="row 7 (line 8)")

    with pytest.raises(ScoringFailed, match=r"0\.5 s") as failed:
        future.result()
    assert 'Rule "size"' in str(failed.value)
    assert "completion 2 of row 7" in str(failed.value)


def test_a_failure_to_start_workers_is_reported(monkeypatch):
    monkeypatch.setattr(module, "Child", lambda _: Child("tests.trainer.rewards.none"))
    pool = Workers(1)

    with pytest.raises(ScoringFailed, match="exit code 1"):
        pool.submit(SHORT.rules, samples("a"), name="row 0").result()

    pool.close()


def test_workers_that_are_lost_again_and_again_end_the_run(bad, monkeypatch):
    """Each is lost at a group, none at a rule alone."""
    ask = module._Worker._ask

    def lose(self: object, rules: object, *args: object, **options: object) -> None:
        if len(rules) == 2:
            raise module.NoReply("it was killed by SIGKILL")
        ask(self, rules, *args, **options)

    monkeypatch.setattr(module._Worker, "_ask", lose)

    with pytest.raises(ScoringFailed, match=r"3 times .*SIGKILL"):
        bad.submit(TWO.rules, samples("a"), name="row 0").result()


def test_closing_ends_whatever_is_being_scored(bad):
    bad.submit(SHORT.rules, samples("a"), name="row 0").result()
    pid = pid_of(bad)
    hanging = bad.submit(SHORT.rules, samples("hang"), name="row 0")
    waiting = bad.submit(SHORT.rules, samples("a"), name="row 1")
    wait_until(hanging.running)

    bad.close()

    assert not is_running(pid)
    with pytest.raises(ScoringFailed, match="run has ended"):
        hanging.result()
    with pytest.raises(CancelledError):
        waiting.result()


def test_workers_that_scored_nothing_can_be_closed():
    Workers(3).close()


def test_a_worker_ends_with_a_trainer_that_is_killed_while_it_scores(tmp_path):
    begun = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", SCORE_AND_HANG, begun],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=child_environment(),
    ) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        wait_until(begun.exists)
        trainer.kill()

    assert wait_until_gone(pid)
