from __future__ import annotations

from fractions import Fraction

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.numbers import last_number, read_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("42", 42),
        (" +42 ", 42),
        ("-7", -7),
        ("\u22127", -7),
        ("1,234", 1234),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("$1,250.00", 1250),
        ("3/4", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (".5", Fraction(1, 2)),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("50%", 50),
    ],
)
def test_a_number_is_read_however_it_is_written(text, expected):
    assert read_number(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "1 2", "1,23", "3/0", "--1", "1e999999999", "9" * 101, "٣"]
)
def test_what_is_no_number_is_none(text):
    assert read_number(text) is None


def test_a_percent_sign_can_mean_a_hundredth():
    assert read_number("50%", percent="divide") == Fraction(1, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 3 and then 4.", 4),
        ("9-7", 7),
        ("9 - 7 = -7", -7),
        ("x = -7", -7),
        ("(2)-7", 7),
        ("it costs $5.00!", 5),
        ("1,000", 1000),
        ("first 1, then 2", 2),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text_carries_its_sign(text, expected):
    assert last_number(text) == expected


@pytest.mark.parametrize(
    ("completion", "params", "expected"),
    [
        ("First 3, then 42", {}, 1.0),
        ("First 42, then 3", {}, 0.0),
        ("no number", {}, 0.0),
        ("<answer>x = 42</answer> or 7", {"source": "tags"}, 1.0),
        ("42", {"source": "tags"}, 0.0),
        (r"so \boxed{42} of 50", {"source": "boxed"}, 1.0),
        (r"so \boxed{\frac{84}{2}} of 50", {"source": "boxed"}, 1.0),
        (r"so \boxed{42", {"source": "boxed"}, 0.0),
        ("work 7\n#### 42\nthe end 9", {"source": "marker"}, 1.0),
        ("work 42", {"source": "marker"}, 0.0),
        ("Answer: 42", {"source": "marker", "marker": "Answer:"}, 1.0),
        ("42.4", {"tolerance": 0.5}, 1.0),
        ("42.6", {"tolerance": 0.5}, 0.0),
        ("40", {"relative_tolerance": 0.1}, 1.0),
        ("37", {"relative_tolerance": 0.1}, 0.0),
    ],
)
def test_a_completion_is_compared_with_the_row(completion, params, expected):
    assert score("numeric_answer", completion, "42", **params) == expected


def test_gsm8k_answers_are_read_after_their_marker():
    answer = "She had 3+4=<<3+4=7>>7.\n#### 1,007"

    assert score("numeric_answer", "It is 1007.", answer) == 1.0


def test_decimals_are_exact():
    assert score("numeric_answer", "0.3", "3/10") == 1.0


@pytest.mark.parametrize("answer", [None, "Paris", "7 or 8", ""])
def test_a_row_whose_answer_is_no_number_gives_no_score(answer):
    result = scored("numeric_answer", "42", answer)

    assert result.total is None
    assert "answer" in result.errors["it"]
