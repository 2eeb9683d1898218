import ast
import inspect
import json
import textwrap
import warnings

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.rules.reasoning_gym import REFUSED_TASKS, TASKS
from trainer.rewards.spec import RuleSpec

RUNS_TEXT = {"eval", "exec", "compile", "parse_expr", "sympify"}


@pytest.fixture(scope="module")
def gym():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries it imports are out of date
        import reasoning_gym
    return reasoning_gym


def entry_of(gym, task: str) -> dict:
    entry = gym.create_dataset(task, size=1, seed=3)[0]
    return json.loads(json.dumps(entry))


@pytest.mark.parametrize("task", ["chain_sum", "letter_counting", "leg_counting"])
def test_the_tasks_own_answer_scores_one(gym, task):
    entry = entry_of(gym, task)
    completion = f"<answer>{entry['answer']}</answer>"

    found = score("reasoning_gym", completion, None, {"entry": entry}, task=task)

    assert found == 1.0


def test_a_wrong_answer_scores_less(gym):
    columns = {"entry": entry_of(gym, "chain_sum")}

    wrong = score(
        "reasoning_gym", "<answer>x</answer>", None, columns, task="chain_sum"
    )
    missing = score("reasoning_gym", "no tags", None, columns, task="chain_sum")

    assert wrong == 0.0
    assert missing == 0.0


@pytest.mark.parametrize(
    "columns", [{}, {"entry": "7"}, {"entry": {"answer": "7"}}, {"entry": None}]
)
def test_a_row_without_an_entry_gives_no_score(columns):
    result = scored(
        "reasoning_gym", "<answer>7</answer>", "7", columns, task="chain_sum"
    )

    assert result.total is None
    assert 'column "entry"' in result.errors["it"]


def test_an_entry_of_another_task_gives_no_score(gym):
    columns = {"entry": entry_of(gym, "chain_sum")}

    result = scored(
        "reasoning_gym", "<answer>7</answer>", None, columns, task="word_ladder"
    )

    assert result.total is None
    assert "task" in result.errors["it"]


def test_the_names_are_those_of_the_installed_version(gym):
    from reasoning_gym.factory import DATASETS

    assert set(TASKS) | set(REFUSED_TASKS) == set(DATASETS)
    assert not set(TASKS) & set(REFUSED_TASKS)


def test_no_task_on_offer_has_a_scorer_that_runs_text(gym):
    from reasoning_gym.factory import DATASETS

    runs_text = {
        name
        for name, (dataset, _) in DATASETS.items()
        if called_by(dataset, "score_answer") & RUNS_TEXT
    }

    assert "string_insertion" in runs_text, "the search itself has stopped working"
    assert not runs_text & set(TASKS)


def called_by(dataset: type, method: str) -> set[str]:
    """Names of what a method calls, and what its own class's methods then call."""
    found: set[str] = set()
    waiting, seen = [method], set()
    while waiting:
        name = waiting.pop()
        function = getattr(dataset, name, None) or getattr(
            inspect.getmodule(dataset), name, None
        )
        if name in seen or not inspect.isfunction(function):
            continue
        seen.add(name)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found.add(called)
                waiting.append(called)
    if dataset.__name__ == "PropositionalLogicDataset":
        found.discard("parse_expr")  # a harmless parser of its own
    return found


@pytest.mark.parametrize("task", ["countdown", "no_such_task"])
def test_other_tasks_are_refused_with_their_names(task):
    with pytest.raises(ValueError, match=f'"{task}"'):
        RuleSpec(name="it", kind="reasoning_gym", params={"task": task})
