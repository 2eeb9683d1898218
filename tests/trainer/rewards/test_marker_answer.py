from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.numbers import only_number

VERL = {
    "marker": "####",
    "tail_characters": 300,
    "left_out": ",$",
    "published_by": "verl",
}
LM_BOOK = {
    "marker": "<answer>",
    "until": "</answer>",
    "number_credit": 0.75,
    "published_by": "lm_book",
}


def grade(completion: str, answer: str | None = "1234", **params) -> float | None:
    return score("marker_answer", completion, answer, **params)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("so #### 1234", 1.0),
        ("so ####1234  \nbye", 1.0),
        ("#### 5 #### 1234", 1.0),  # the last one counts
        ("#### 1234 #### 5", 0.0),
        ("#### 1,234", 1.0),  # its number, written otherwise
        ("#### 1 and 234", 0.0),
        ("1234", 0.0),
        ("####", 0.0),
    ],
)
def test_the_last_markers_line_is_compared(completion, expected):
    assert grade(completion) == expected


def test_each_kind_of_miss_has_its_score():
    params = {"number_credit": 0.5, "wrong_score": -0.25, "missing_score": -1.0}

    assert grade("#### 1234", **params) == 1.0
    assert grade("#### 1234.0", **params) == 0.5
    assert grade("#### 12", **params) == -0.25
    assert grade("12", **params) == -1.0


def test_an_answer_that_is_not_closed_is_missing():
    params = LM_BOOK | {"missing_score": -1.0}

    assert grade("<answer>1234", **params) == -1.0
    assert grade("<answer>1234</answer><answer>1234", **params) == -1.0


def test_only_the_tail_is_read_when_asked():
    completion = "#### 1234" + "." * 300

    assert grade(completion, left_out=".") == 1.0
    assert grade(completion, left_out=".", tail_characters=300) == 0.0


def test_the_worked_solution_of_a_row_is_read_behind_its_marker():
    assert grade("#### 72", "48 and 24 are 72\n#### 72") == 1.0


def test_a_row_without_an_answer_gives_no_score():
    result = scored("marker_answer", "#### 1", None)

    assert result.total is None
    assert "no answer" in result.errors["it"]


@pytest.mark.parametrize(
    ("completion", "strict", "published"),
    [
        ("#### 1234", 1.0, 1.0),
        ("#### 1,234", 1.0, 1.0),
        ("#### 1234.0", 1.0, 0.0),  # published: texts alone are compared
        ("####1234", 1.0, 0.0),  # published: a space must follow
        ("#### $1234", 1.0, 0.0),  # published: a digit must follow
        ("#### 1234 #### none", 0.0, 1.0),  # published: a number must follow
        ("#### 1234" + "x" * 300, 0.0, 0.0),
        ("1234", 0.0, 0.0),
    ],
)
def test_verls_grader(completion, strict, published):
    assert grade(completion, **VERL) == strict
    assert grade(completion, mode="as_published", **VERL) == published


@pytest.mark.parametrize(
    ("completion", "strict", "published"),
    [
        ("<answer>1234</answer>", 1.0, 1.0),
        ("<answer> 1234 </answer>", 1.0, 1.0),
        ("<answer>1234 apples</answer>", 0.75, 0.75),
        ("<answer>1234.0</answer>", 0.75, 0.75),
        ("<answer>1,234</answer>", 0.75, 0.0),  # published: two numbers
        ("<answer>1234 of 2000</answer>", 0.0, 0.0),
        ("<answer>5</answer><answer>1234</answer>", 1.0, 1.0),
        ("<answer>...</answer>", 0.0, 0.0),
        ("1234", 0.0, 0.0),
    ],
)
def test_the_lm_books_grader(completion, strict, published):
    assert grade(completion, **LM_BOOK) == strict
    assert grade(completion, mode="as_published", **LM_BOOK) == published


def test_the_lm_books_placeholder_is_no_answer():
    params = LM_BOOK | {"missing_score": -1.0, "mode": "as_published"}

    assert grade("<answer>...</answer>", "...", **params) == -1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("72 apples", 72), ("-7", -7), ("1,000", 1000), ("3 of 4", None), ("", None)],
)
def test_a_single_number_is_read_and_two_are_not(text, expected):
    assert only_number(text) == expected
