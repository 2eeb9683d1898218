"""Which completions count as correct, by a recipe's rules or by its reward."""

import pytest

from trainer.rewards.rules import RULES
from trainer.rewards.scoring import correctness_of
from trainer.rewards.spec import Recipe


def recipe(*rules: tuple[str, float], **others: object) -> Recipe:
    named = [{"name": kind, "kind": kind, "weight": weight} for kind, weight in rules]
    return Recipe.model_validate({"rules": named, **others})


SHAPED = recipe(("format_tags", 0.2), ("countdown", 1.0), ("length", 1.0))
MIXED = recipe(("numeric_answer", 1.0), ("code_tests", 1.0))


def test_a_correct_answer_counts_whatever_shaping_terms_give():
    correctness = correctness_of(SHAPED)

    assert correctness.holds(1.0, {"countdown": 1.0, "format_tags": 0.0, "length": 0.0})
    assert not correctness.holds(1.2, {"countdown": 0.5, "length": 1.0})
    assert correctness.condition == "countdown = 1"


def test_an_answer_rule_of_weight_0_decides():
    correctness = correctness_of(recipe(("length", 1.0), ("exact_answer", 0.0)))

    assert correctness.holds(0.0, {"length": 0.0, "exact_answer": 1.0})
    assert not correctness.holds(1.0, {"length": 1.0, "exact_answer": 0.0})


@pytest.mark.parametrize(
    ("number", "tests", "holds"),
    [
        (1.0, 1.0, True),
        (1.0, 0.0, False),
        (1.0, None, True),  # not applicable to the row
        (None, 1.0, True),
        (None, None, False),
    ],
)
def test_every_answer_rule_with_a_score_must_give_the_full_one(number, tests, holds):
    scores = {"numeric_answer": number, "code_tests": tests}

    assert correctness_of(MIXED).holds(1.0, scores) is holds


def test_a_completion_without_a_reward_is_not_correct():
    assert not correctness_of(SHAPED).holds(None, {"countdown": 1.0})


def test_without_answer_rules_the_highest_reward_counts():
    correctness = correctness_of(recipe(("format_tags", 0.2), ("length", 2.0)))

    assert correctness.holds(0.2 + 2.0, {})
    assert not correctness.holds(2.0, {"length": 1.0})
    assert correctness.condition == "reward 2.2"


def test_a_schedule_moves_the_highest_reward():
    schedule = {"points": [{"step": 10, "weight": 3.0}]}
    rule = {"name": "a", "kind": "length", "schedule": schedule}
    made = Recipe.model_validate({"rules": [rule]})

    assert correctness_of(made, step=1).condition == "reward 1"
    assert correctness_of(made, step=10).condition == "reward 3"


def test_these_rules_say_whether_a_completion_is_correct():
    assert {kind for kind, rule in RULES.items() if rule.decides_correctness} == {
        *("exact_answer", "numeric_answer", "math_verify", "marker_answer"),
        *("multiple_choice", "code_tests", "countdown", "reasoning_answer"),
        *("reasoning_gym", "environment"),
    }
