import random
import re

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.starter.countdown import (
    MAX_NUMBER,
    MAX_TARGET,
    Plan,
    Problem,
    all_problems,
    plans_for,
    prompt_for,
    searching_text,
    solving_text,
)
from tests.trainer.rewards.scores import score_completion
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe

RECIPE = Recipe.model_validate(
    {
        "rules": [
            {"name": "format", "kind": "format_tags", "weight": 0.1},
            {"name": "equation", "kind": "countdown", "weight": 0.9},
        ]
    }
)


def text_for(problem: Problem, *, seed: int = 0, **changes: float) -> str:
    rates = {"hit_rate": 0.1, "give_up_rate": 0.3, "max_tries": 4} | changes
    return searching_text(problem, random.Random(seed), **rates)


def test_a_plan_is_worked_from_left_to_right():
    plan = Plan((3, 5, 7), (1, -1))

    assert plan.value == 1
    assert plan.expression == "3+5-7"
    assert plan.worked(".") == "3+5=8,8-7=1."


def test_no_plan_goes_below_zero():
    plans = plans_for((1, 2, 10))

    assert all(plan.partial >= 0 and plan.value >= 0 for plan in plans)
    assert {plan.value for plan in plans} == {13, 11, 9, 7}


def test_every_problem_is_solvable_and_different():
    problems = all_problems()

    assert len(problems) == len(set(problems)) > 400
    for problem in problems:
        assert len(set(problem.numbers)) == 3
        assert max(problem.numbers) <= MAX_NUMBER
        assert 1 <= problem.target <= MAX_TARGET
        assert problem.target in {plan.value for plan in plans_for(problem.numbers)}


def test_a_prompt_reads_as_numbers_and_target():
    prompt = prompt_for(Problem((3, 5, 7), 1), random.Random(0))

    assert re.fullmatch(r"[357] [357] [357] > 1", prompt)
    assert sorted(prompt.split(" > ")[0].split()) == ["3", "5", "7"]


@given(seed=st.integers(0, 19))
def test_a_searching_text_is_honest(seed):
    problem = all_problems()[seed * 17]

    text = text_for(problem, seed=seed)

    assert re.fullmatch(r"<think>.+</think><answer>.+</answer>", text)
    for first, sign, second, value in re.findall(r"(\d+)([+-])(\d+)=(\d+)", text):
        assert int(first) + int(sign + second) == int(value)
    for value, mark in re.findall(r"(\d+)([.!])", text):
        assert (int(value) == problem.target) == (mark == ".")


def test_a_hit_is_rewarded_in_full_and_a_miss_for_its_format():
    problem = Problem((3, 5, 7), 1)
    columns = {"numbers": [3, 5, 7], "target": 1}

    hit = text_for(problem, hit_rate=1.0)
    miss = text_for(problem, hit_rate=0.0, give_up_rate=1.0)

    assert score_completion(RECIPE, Sample("", hit, None, columns)).total == 1.0
    assert score_completion(RECIPE, Sample("", miss, None, columns)).total == 0.1


@given(seed=st.integers(0, 9))
def test_a_solving_text_ends_with_its_only_hit_and_scores_in_full(seed):
    problem = all_problems()[seed * 31]
    columns = {"numbers": list(problem.numbers), "target": problem.target}

    text = solving_text(problem, random.Random(seed), max_misses=4)

    assert text.count(".") == 1
    assert text.count("!") <= 4
    assert ".</think>" in text
    assert score_completion(RECIPE, Sample("", text, None, columns)).total == 1.0


def test_the_rates_decide_how_long_it_tries():
    problem = Problem((3, 5, 7), 1)

    patient = text_for(problem, hit_rate=0.0, give_up_rate=0.0)
    hasty = text_for(problem, hit_rate=0.0, give_up_rate=1.0)

    assert patient.count("!") == 4
    assert hasty.count("!") == 1
