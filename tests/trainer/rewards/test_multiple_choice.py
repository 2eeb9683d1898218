from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score, scored

CITIES = {"options": ["Lyon", "Paris", "Vitamin C", "Nice."]}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>B</answer>", 1.0),
        ("<answer>(B)</answer>", 1.0),
        ("<answer> B. </answer>", 1.0),
        ("<answer>b</answer>", 1.0),
        ("<answer>b) Paris</answer>", 1.0),
        ("<answer>B) Paris</answer>", 1.0),
        ("<answer>**B**</answer>", 1.0),
        (r"<answer>$\text{B}$</answer>", 1.0),
        ("<answer>The answer is B</answer>", 1.0),
        ("<answer>B: A fine city</answer>", 1.0),
        ("<answer>C</answer>", 0.0),
        ("<answer>A or B</answer>", 0.0),  # two are none
        ("<answer>(B) and (C)</answer>", 0.0),
        ("<answer>b) or C</answer>", 0.0),
        ("<answer>Z</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>Barcelona</answer>", 0.0),
        ("B", 0.0),
    ],
)
def test_a_choice_is_read_however_it_is_written(completion, expected):
    assert score("multiple_choice", completion, "B") == expected


@pytest.mark.parametrize(
    ("source", "completion", "expected"),
    [
        ("boxed", r"so \boxed{\text{B}}", 1.0),
        ("boxed", r"so \boxed{A}", 0.0),
        ("boxed", "so B", 0.0),
        ("marker", "Answer: A\nNo. Answer: (B)\nC is wrong.", 1.0),
        ("marker", "It is B.", 0.0),
        ("last_letter", "A is tempting, but it must be B.", 1.0),
        ("last_letter", "It is (B). A better reason is not needed.", 1.0),
        ("last_letter", "It is B or C", 0.0),
        ("last_letter", "It is Brussels", 0.0),
        ("last_letter", "", 0.0),
    ],
)
def test_a_choice_stands_where_it_was_asked_for(source, completion, expected):
    assert score("multiple_choice", completion, "B", source=source) == expected


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("<answer>paris</answer>", "B", 1.0),
        ("<answer>B</answer>", "Paris.", 1.0),
        ("<answer>Nice</answer>", "D", 1.0),
        ("<answer>Vitamin C</answer>", "C", 1.0),
        ("<answer>B) Vitamin C</answer>", "C", 0.0),
        ("<answer>C) Vitamin C</answer>", "C", 1.0),
        ("<answer>Rome</answer>", "B", 0.0),
    ],
)
def test_an_options_text_stands_for_its_letter(completion, answer, expected):
    found = score(
        "multiple_choice", completion, answer, CITIES, options_column="options"
    )

    assert found == expected


def test_the_last_line_may_be_an_options_text():
    found = score(
        "multiple_choice",
        "Not A.\nParis",
        "B",
        CITIES,
        options_column="options",
        source="last_letter",
    )

    assert found == 1.0


def test_options_come_with_their_labels_too():
    column = {"options": {"label": ["A", "B"], "text": ["Lyon", "Paris"]}}

    found = score(
        "multiple_choice",
        "<answer>Paris</answer>",
        "B",
        column,
        options_column="options",
    )

    assert found == 1.0


@pytest.mark.parametrize(
    ("answer", "answer_as"), [("1", "number_from_0"), ("2", "number_from_1")]
)
def test_an_answer_may_be_a_place_in_the_list(answer, answer_as):
    found = score("multiple_choice", "<answer>B</answer>", answer, answer_as=answer_as)

    assert found == 1.0


def test_lower_case_is_no_letter_when_case_counts():
    assert score("multiple_choice", "<answer>b</answer>", "B", ignore_case=False) == 0.0


@pytest.mark.parametrize(
    ("answer", "answer_as"),
    [
        ("Paris", "letter_or_text"),
        ("E", "letter_or_text"),
        ("4", "number_from_0"),
        ("0", "number_from_1"),
        ("B", "number_from_0"),
        ("9" * 5_000, "number_from_0"),
    ],
)
def test_an_answer_that_names_no_option_gives_no_score(answer, answer_as):
    result = scored(
        "multiple_choice", "<answer>B</answer>", answer, answer_as=answer_as
    )

    assert result.total is None
    assert "A to D" in result.errors["it"]


@pytest.mark.parametrize("column", [None, "Paris", ["Paris"], {"text": 1}, ["x"] * 27])
def test_a_row_without_its_options_gives_no_score(column):
    result = scored(
        "multiple_choice",
        "<answer>B</answer>",
        "B",
        {"options": column},
        options_column="options",
    )

    assert result.total is None
    assert 'needs a column "options"' in result.errors["it"]
