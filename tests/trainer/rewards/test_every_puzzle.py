"""Each of reasoning-gym's tasks makes rows, and its own scorer judges them as it does.

The rows are those of the generator: entries that have been JSON.
"""

import json
import warnings
from functools import cache
from typing import Any

import pytest

from tests.trainer.rewards.scores import score
from trainer.rewards.rules.reasoning_gym import REFUSED_TASKS, TASKS

# A library of theirs leaves the file of its boards to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
LEFT_OUT = {"codeio", "composite"}  # by the generator, which lists neither
GENERATED = {*TASKS, *REFUSED_TASKS} - LEFT_OUT
SCORED = {*TASKS} - LEFT_OUT
# Where many answers are right the entry holds none, or one among its metadata.
SOLVED_BY = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: metadata["example_answer"],
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
}
OPEN = {"boxnet", "rush_hour"}  # of which no solution is known
# One of each kind of answer: a number, a word, a list, a grid, moves, JSON, none.
SOME = {
    *(
        "basic_arithmetic",
        "fraction_simplification",
        "letter_counting",
        "caesar_cipher",
    ),
    *("word_sorting", "mini_sudoku", "arc_1d", "tower_of_hanoi", "number_sorting"),
    *SOLVED_BY,
}


def each(tasks: set[str]) -> list[Any]:
    """The others take the same path, a quarter of a minute for all."""
    return [
        pytest.param(task, marks=[] if task in SOME else pytest.mark.slow)
        for task in sorted(tasks)
    ]


@cache
def made(task: str) -> tuple[dict[str, Any], ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries it imports are out of date
        # Loaded with the test that needs it: it takes seconds.
        from dashboard.datasets.generator_process import _generate

        *replies, last = _generate(task=task, size=2, seed=3, options={})
    assert last == {"done": True}
    return tuple(json.loads(json.dumps(reply["entry"])) for reply in replies)


def judged(task: str, answer: str, entry: dict[str, Any]) -> float | None:
    completion = f"<answer>{answer}</answer>"
    columns = {"task": task, "entry": entry}
    params = {"task": task, "timeout_seconds": 30}

    return score("reasoning_gym", completion, entry["answer"], columns, **params)


@pytest.mark.parametrize("task", each(GENERATED))
def test_a_task_makes_rows_that_ask_something(task):
    entries = made(task)

    assert len(entries) == 2
    assert all(entry["question"].strip() for entry in entries)


@pytest.mark.parametrize("task", each(SCORED - OPEN))
def test_a_rows_solution_gets_the_highest_score(task):
    for entry in made(task):
        answer = entry["answer"]
        if answer is None:
            answer = SOLVED_BY[task](entry["metadata"])

        assert judged(task, answer, entry) == 1.0


@pytest.mark.parametrize("task", each(SCORED))
def test_the_rule_says_what_the_library_says_of_its_own_entry(task):
    import reasoning_gym

    scorer = reasoning_gym.create_dataset(task, size=2, seed=3)
    entries = made(task)
    answers = ["0", "[]", *(entry["answer"] or "A" for entry in entries)]
    for entry, original in zip(entries, scorer, strict=True):
        for answer in answers:
            try:
                expected = min(1.0, max(0.0, scorer.score_answer(answer, original)))
            except Exception:  # noqa: BLE001 - a malformed answer, which scores 0
                expected = 0.0

            assert judged(task, answer, entry) == pytest.approx(expected), answer


def test_a_puzzle_without_an_answer_of_its_own_is_judged_by_its_rules():
    """The car A drives out of an empty street."""
    board = "o" * 12 + "AAoooo" + "o" * 18
    entry = {"question": "?", "answer": None, "metadata": {"board_config": board}}

    assert judged("rush_hour", "A+4", entry) == 1.0
    assert judged("rush_hour", "A+1", entry) == pytest.approx(0.01)


def test_boxes_that_meet_their_targets_are_counted():
    state = {"0.5_0.5": ["box_red", "target_red"], "1.5_0.5": ["box_blue"]}
    entry = {"question": "?", "answer": None, "metadata": {"initial_state": state}}
    plan = [{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]

    assert judged("boxnet", json.dumps(plan), entry) == 0.5


def test_an_invalid_board_gives_no_score():
    entry = {"question": "?", "answer": "1 2", "metadata": {"output": 3}}

    assert judged("arc_agi", "1 2", entry) is None
