import pytest

from tests.trainer.rewards.scores import score, scored

ROW = {"numbers": [1, 2, 3], "target": 9}


def grade(expression: str, columns: dict[str, object] | None = None, **params):
    completion = f"<answer>{expression}</answer>"
    return score("countdown", completion, None, columns or ROW, **params)


@pytest.mark.parametrize("expression", ["(1+2)*3", "3*(2+1)", " ( 1 + 2 ) * 3 "])
def test_an_equation_that_reaches_the_target_scores_one(expression):
    assert grade(expression) == 1.0


@pytest.mark.parametrize(
    "expression",
    [
        "3 × (1 + 2)",
        "3 · (2 + 1)",
        r"3 \times (1 + 2)",
        r"$3 \cdot \left(1 + 2\right)$",
        r"\(3 \times (1 + 2)\)",
    ],
)
def test_signs_of_multiplication_are_read(expression):
    assert grade(expression) == 1.0


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("6 ÷ 2", {"numbers": [2, 6], "target": 3}),
        (r"6 \div 2", {"numbers": [2, 6], "target": 3}),
        ("6 − 2", {"numbers": [2, 6], "target": 4}),
    ],
)
def test_signs_of_division_and_subtraction_are_read(expression, columns):
    assert grade(expression, columns) == 1.0
    assert grade(expression, columns | {"target": 12}) == 0.0


def test_signs_beyond_ascii_stay_unread_as_published():
    assert grade("3 × (1 + 2)", mode="as_published") == 0.0


def test_any_other_text_scores_zero():
    wrong = [
        (expression, found)
        for expression in [
            "1+2+3",  # another value
            "3*3",  # a number twice, others never
            "(1+2)*3+0",  # one number more
            "12-3",  # joined digits
            "9",
            "(1+2)*3=9",
            "3 × 3",
            "1 × 2 × 3",
            "$12$ − 3",
            "3**(2)*1",
            "",
            "the sum",
            "__import__('os').system('true')",
        ]
        if (found := grade(expression)) != 0.0
    ]

    assert wrong == []


def test_fractions_on_the_way_are_exact():
    columns = {"numbers": [1, 3, 3, 7], "target": 7}

    assert grade("7*(1/3)*3", columns) == 1.0


def test_a_number_given_twice_is_used_twice():
    columns = {"numbers": [4, 4], "target": 8}

    assert grade("4+4", columns) == 1.0
    assert grade("8", columns) == 0.0


def test_the_last_answer_block_counts():
    completion = "<answer>1+2+3</answer><answer>(1+2)*3</answer>"

    assert score("countdown", completion, None, ROW) == 1.0


@pytest.mark.parametrize(
    ("numbers", "target"),
    [("1 2 3", "9"), ("[1, 2, 3]", 9), ("1,2,3", 9.0), (["1", 2.0, 3], "9")],
)
def test_columns_from_a_csv_file_are_read(numbers, target):
    columns = {"numbers": numbers, "target": target}

    assert grade("(1+2)*3", columns) == 1.0


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"target": 9}, 'no column "numbers" (its columns: target)'),
        ({"numbers": [1, 2, 3]}, 'no column "target"'),
        ({"numbers": [], "target": 9}, "must be a list of whole numbers"),
        ({"numbers": "one two", "target": 9}, "'one two'"),
        ({"numbers": [1, None], "target": 9}, "[1, None]"),
        ({"numbers": [True, 2], "target": 9}, "[True, 2]"),
        ({"numbers": [1.5, 2], "target": 9}, "[1.5, 2]"),
        ({"numbers": {"a": 1}, "target": 9}, "{'a': 1}"),
        ({"numbers": [1, 2, 3], "target": "nine"}, "'nine'"),
        ({"numbers": [1, 2, 3], "target": float("nan")}, "nan"),
    ],
)
def test_a_row_that_cannot_be_read_gives_no_score(columns, complaint):
    result = scored("countdown", "<answer>(1+2)*3</answer>", None, columns)

    assert result.total is None
    assert complaint in result.errors["it"]


@pytest.mark.parametrize("published_by", ["grpo_zero", "nano_aha_moment"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(1+2)*3", 1.0),
        ("3**(2)*1", 1.0),  # the hole
        ("1+2+3", 0.0),
        ("9**9**9", 0.0),
        ("(1)(2)(3)", 0.0),
        ("import os", 0.0),
    ],
)
def test_as_published_takes_what_the_published_graders_take(
    published_by, expression, expected
):
    params = {"mode": "as_published", "published_by": published_by}

    assert grade(expression, **params) == expected


def test_the_published_graders_differ_over_line_breaks_and_points():
    broken = "<answer>(1+2)\n*3</answer>"
    as_zero = {"mode": "as_published", "published_by": "grpo_zero"}
    as_nano = {"mode": "as_published", "published_by": "nano_aha_moment"}
    pointed = {"numbers": [3, 0], "target": 3}

    assert score("countdown", broken, None, ROW, **as_zero) == 0.0
    assert score("countdown", broken, None, ROW, **as_nano) == 0.0
    assert grade("3.0", pointed, **as_zero) == 0.0
    assert grade("3.0", pointed, **as_nano) == 1.0


def test_the_published_graders_take_the_first_answer_block():
    completion = "<answer>1+2+3</answer><answer>(1+2)*3</answer>"

    assert score("countdown", completion, None, ROW, mode="as_published") == 0.0
