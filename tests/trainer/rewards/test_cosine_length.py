from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import recipe_of, score, scored
from trainer.rewards.spec import recipe_bounds

NUMBER = {"answer_kind": "numeric_answer", "max_length": 100}


def padded(answer: str, length: int) -> str:
    return " " * (length - len(answer)) + answer


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        # cos(0), cos(pi/3) = 1/2, cos(pi/2) = 0 and cos(pi) = -1
        (1, 1.0, -1.0),
        (100 / 3, 0.875, -0.875),
        (50, 0.75, -0.75),
        (100, 0.5, -0.5),
        (400, 0.5, -0.5),
    ],
)
def test_the_score_follows_half_a_cosine_between_short_and_long(length, right, wrong):
    near = pytest.approx(0.0, abs=5e-3)

    assert (
        score("cosine_length", padded("4", round(length)), "4", **NUMBER) - right
        == near
    )
    assert (
        score("cosine_length", padded("5", round(length)), "4", **NUMBER) - wrong
        == near
    )


def test_as_published_the_cosine_turns_back():
    params = NUMBER | {"mode": "as_published"}

    assert score("cosine_length", padded("4", 200), "4", **params) == 1.0
    assert score("cosine_length", padded("5", 200), "4", **params) == -1.0


def test_words_may_be_counted():
    params = NUMBER | {"unit": "words", "max_length": 2}

    assert score("cosine_length", "it is 4", "4", **params) == 0.5


def test_ends_may_be_ones_own_and_are_the_bounds():
    ends = {
        "short_right_score": 2.0,
        "long_right_score": 1.0,
        "short_wrong_score": 0.0,
        "long_wrong_score": 0.25,
    }

    assert recipe_bounds(recipe_of("cosine_length", **NUMBER, **ends)) == (0.0, 2.0)
    assert score("cosine_length", padded("4", 50), "4", **NUMBER, **ends) == 1.5
    assert score("cosine_length", padded("5", 50), "4", **NUMBER, **ends) == 0.125


@pytest.mark.parametrize(
    ("kind", "params", "completion", "answer"),
    [
        ("exact_answer", {"source": "whole"}, "Paris", "paris"),
        ("multiple_choice", {}, "<answer>B</answer>", "B"),
        ("marker_answer", {"marker": "="}, "x = 4", "4"),
        ("math_verify", {"source": "whole"}, r"$\frac{1}{2}$", "0.5"),
    ],
)
def test_any_rule_about_answers_can_say_what_is_right(kind, params, completion, answer):
    how = {"answer_kind": kind, "answer_params": params, "max_length": 10_000_000}

    assert score("cosine_length", completion, answer, **how) == pytest.approx(1.0)
    assert score("cosine_length", "no", answer, **how) == pytest.approx(-1.0)


def test_the_other_rules_settings_are_filled_and_checked():
    spec = recipe_of("cosine_length", **NUMBER).rules[0]

    assert spec.params["answer_params"]["source"] == "last_number"
    with pytest.raises(ValueError, match=r"answer_params.*tolerence"):
        score("cosine_length", "", answer_params={"tolerence": 1}, **NUMBER)


def test_a_row_that_rule_cannot_judge_gives_no_score():
    result = scored("cosine_length", "4", "Paris", **NUMBER)

    assert result.total is None
    assert "not a number" in result.errors["it"]
