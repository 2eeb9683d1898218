"""Rules that compare a completion's answer with the row's."""

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.trainer.rewards.scores import BY_THEMSELVES, recipe_of, score, scored
from trainer.rewards.numbers import last_number, only_number, read_number
from trainer.rewards.rule import NotApplicable, Sample, Unscorable, read_answer
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all


def test_the_answer_is_compared_as_text():
    wrong = [
        (completion, params, expected, found)
        for completion, params, expected in [
            ("<answer>Paris</answer>", {}, 1.0),
            ("<answer> paris. </answer>", {}, 1.0),
            ("Paris", {}, 0.0),
            ("<answer>Lyon</answer><answer>Paris</answer>", {}, 1.0),
            ("<answer>Paris</answer><answer>Lyon</answer>", {}, 0.0),
            ("<answer>Paris", {}, 0.0),
            ("<answer>paris</answer>", {"ignore_case": False}, 0.0),
            ("<answer>Paris.</answer>", {"ignore_final_period": False}, 0.0),
            ("<final>Paris</final>", {"tag": "final"}, 1.0),
            ("Let me see.\n\nParis\n", {"source": "last_line"}, 1.0),
            ("Paris\nI think.", {"source": "last_line"}, 0.0),
            (r"so \boxed{ Paris }, or \boxed{Paris}.", {"source": "boxed"}, 1.0),
            (r"\boxed{Paris}, no, \boxed{Lyon}", {"source": "boxed"}, 0.0),
            ("Paris", {"source": "boxed"}, 0.0),
            (" Paris ", {"source": "whole"}, 1.0),
            ("It is Paris", {"source": "whole"}, 0.0),
        ]
        if (found := score("exact_answer", completion, "Paris", **params)) != expected
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("white_space", "expected"), [("strip", 0.0), ("collapse", 0.0), ("remove", 1.0)]
)
def test_white_space_inside_an_answer_counts_unless_removed(white_space, expected):
    found = score("exact_answer", "<answer>N Y</answer>", "NY", white_space=white_space)

    assert found == expected


def test_runs_of_white_space_count_as_one_space_when_collapsed():
    completion = "<answer>New \n York</answer>"

    assert score("exact_answer", completion, "New York") == 1.0
    assert score("exact_answer", completion, "New York", white_space="strip") == 0.0


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_a_row_without_an_answer_gives_no_score(answer):
    result = scored("exact_answer", "<answer>Paris</answer>", answer)

    assert result.total is None
    assert "has no answer" in result.errors["it"]


def test_a_number_is_read_however_it_is_written():
    wrong = [
        (text, expected, found)
        for text, expected in [
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
        ]
        if (found := read_number(text)) != expected
    ]

    assert wrong == []


def test_text_without_a_number_reads_as_none():
    wrong = [
        (text, found)
        for text in [
            "",
            "x",
            "1 2",
            "1,23",
            "3/0",
            "--1",
            "1e999999999",
            "9" * 101,
        ]
        if (found := read_number(text)) is not None
    ]

    assert wrong == []


def test_a_percent_sign_can_mean_a_hundredth():
    assert read_number("50%", percent="divide") == Fraction(1, 2)


def test_the_last_number_of_a_text_carries_its_sign():
    wrong = [
        (text, expected, found)
        for text, expected in [
            ("so 3 and then 4.", 4),
            ("9-7", 7),
            ("9 - 7 = -7", -7),
            ("x = -7", -7),
            ("(2)-7", 7),
            ("it costs $5.00!", 5),
            ("1,000", 1000),
            ("first 1, then 2", 2),
            ("none", None),
        ]
        if (found := last_number(text)) != expected
    ]

    assert wrong == []


def test_a_completion_is_compared_with_the_row():
    wrong = [
        (completion, params, expected, found)
        for completion, params, expected in [
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
        ]
        if (found := score("numeric_answer", completion, "42", **params)) != expected
    ]

    assert wrong == []


def test_gsm8k_answers_are_read_after_their_marker():
    answer = "She had 3+4=<<3+4=7>>7.\n#### 1,007"

    assert score("numeric_answer", "It is 1007.", answer) == 1.0


def test_decimals_are_exact():
    assert score("numeric_answer", "0.3", "3/10") == 1.0


@pytest.mark.parametrize("answer", [None, "Paris", "7 or 8", ""])
def test_a_row_without_a_number_as_answer_gives_no_score(answer):
    result = scored("numeric_answer", "42", answer)

    assert result.total is None
    assert "answer" in result.errors["it"]


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


def test_a_row_without_an_answer_gives_no_score_by_its_marker():
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


def test_the_lm_books_placeholder_does_not_count_as_answer():
    params = LM_BOOK | {"missing_score": -1.0, "mode": "as_published"}

    assert grade("<answer>...</answer>", "...", **params) == -1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("72 apples", 72), ("-7", -7), ("1,000", 1000), ("3 of 4", None), ("", None)],
)
def test_a_single_number_is_read_and_two_are_not(text, expected):
    assert only_number(text) == expected


CITIES = {"options": ["Lyon", "Paris", "Vitamin C", "Nice."]}


def test_a_choice_is_read_however_it_is_written():
    wrong = [
        (completion, expected, found)
        for completion, expected in [
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
        ]
        if (found := score("multiple_choice", completion, "B")) != expected
    ]

    assert wrong == []


def test_a_choice_is_read_at_its_location():
    wrong = [
        (source, completion, expected, found)
        for source, completion, expected in [
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
        ]
        if (found := score("multiple_choice", completion, "B", source=source))
        != expected
    ]

    assert wrong == []


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


def test_lower_case_letters_are_ignored_when_case_counts():
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


BOTH = "Sorry, your refund is coming."
ONE = "Your refund is coming."
NEITHER = "No."


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("all", [1.0, 0.0, 0.0]),
        ("any", [1.0, 1.0, 0.0]),
        ("none", [0.0, 0.0, 1.0]),
        ("share", [1.0, 0.5, 0.0]),
    ],
)
def test_phrases_are_all_there_or_some_or_none(match, expected):
    phrases = ["sorry", "refund"]

    found = [
        score("contains", text, phrases=phrases, match=match)
        for text in (BOTH, ONE, NEITHER)
    ]

    assert found == expected


def test_case_counts_when_it_is_asked_to():
    assert score("contains", BOTH, phrases=["sorry"], ignore_case=False) == 0.0
    assert score("contains", BOTH, phrases=["Sorry"], ignore_case=False) == 1.0


def test_a_whole_word_has_no_letters_next_to_it():
    wrong = [
        (completion, expected, found)
        for completion, expected in [
            ("a cat sat", 1.0),
            ("Cat!", 1.0),
            ("(cat)", 1.0),
            ("cat", 1.0),
            ("concatenate", 0.0),
            ("cats, then a cat", 1.0),
            ("cat_", 0.0),
            ("écat", 0.0),  # a letter beyond ASCII is one too
            ("cat7", 0.0),
        ]
        if (found := score("contains", completion, phrases=["cat"], whole_words=True))
        != expected
    ]

    assert wrong == []


def test_a_phrase_is_text_and_no_pattern():
    assert score("contains", "abc", phrases=["a.c"]) == 0.0
    assert score("contains", "abc", phrases=["a.c"], whole_words=True) == 0.0
    assert score("contains", "see a.c!", phrases=["a.c"], whole_words=True) == 1.0


@pytest.mark.parametrize(
    "phrases", [[], [""], [" "], ["a\nb"], "sorry", ["x"] * 51, ["x" * 201]]
)
def test_phrases_that_are_no_list_of_texts_are_refused(phrases):
    with pytest.raises(ValueError, match="parameter phrases"):
        score("contains", "", phrases=phrases)


CAPITAL = ["Paris", "City of Light"]


def test_any_of_several_answers_is_right():
    cases = [
        ("exact_answer", "<answer>paris</answer>", CAPITAL, {}, 1.0),
        ("exact_answer", "<answer>city of light</answer>", CAPITAL, {}, 1.0),
        ("exact_answer", "<answer>Lyon</answer>", CAPITAL, {}, 0.0),
        ("numeric_answer", "It is 7.", ["5", "7"], {}, 1.0),
        ("numeric_answer", "It is 6.", ["5", "7"], {"wrong_score": -0.5}, -0.5),
        # An answer that the rule cannot read is passed over where another can be.
        ("numeric_answer", "It is 7.", ["seven", "7"], {}, 1.0),
        ("numeric_answer", "It is 6.", ["seven", "7"], {}, 0.0),
        ("math_verify", "<answer>0.5</answer>", ["1/3", "\\frac{1}{2}"], {}, 1.0),
        ("math_verify", "<answer>0.4</answer>", ["1/3", "\\frac{1}{2}"], {}, 0.0),
        ("marker_answer", "#### 8", ["7", "8"], {}, 1.0),
        # The best score counts: the text of one answer, the number of another.
        ("marker_answer", "#### 8 km", ["8", "8 km"], {"number_credit": 0.5}, 1.0),
        ("marker_answer", "#### 8 m", ["9", "8"], {"number_credit": 0.5}, 0.5),
        ("multiple_choice", "<answer>C</answer>", ["A", "C"], {}, 1.0),
        ("multiple_choice", "<answer>B</answer>", ["A", "C"], {}, 0.0),
        (
            "reasoning_answer",
            "<think>So 7.</think> It is 7.",
            ["5", "7"],
            {"answer_kind": "numeric_answer"},
            1.0,
        ),
        # One that is right is short, whichever of the answers it gives.
        ("cosine_length", "7", ["5", "7"], {"answer_kind": "numeric_answer"}, 1.0),
    ]
    wrong = [
        (*case, found)
        for case in cases
        for kind, completion, answers, params, expected in [case]
        if (found := score(kind, completion, answers, **params))
        != pytest.approx(expected, abs=0.01)
    ]

    assert wrong == []


def test_a_group_rule_takes_any_of_several_answers():
    recipe = recipe_of("length_rank", answer_kind="numeric_answer")
    samples = [Sample("", text, ["5", "7"]) for text in ("7", "So 5", "It is 6")]

    scores = [score.total for score in score_all(recipe, samples)]

    assert scores == pytest.approx([0.5, 0.0, -0.5])


@pytest.mark.parametrize("answers", [[], ["", " "], ["five", "seven"]])
def test_several_answers_of_which_none_can_be_read_give_no_score(answers):
    result = scored("numeric_answer", "It is 7.", answers)

    assert (result.total, result.not_applicable) == (None, ["it"])


def test_a_failure_is_reported_rather_than_an_unreadable_answer(monkeypatch):
    def fail(sample, params):
        kind = Unscorable if sample.answer == "b" else NotApplicable
        raise kind(sample.answer)

    rule = replace(RULES["exact_answer"], score=fail)
    (outcome,) = rule.judge([Sample("", "", ["a", "b", "c"])], None)

    assert (type(outcome), str(outcome)) == (Unscorable, "b")


def test_no_answer_is_compared_with_after_the_best_score():
    asked = []

    def compare(sample, params):
        asked.append(sample.answer)
        return float(sample.answer == "b")

    rule = replace(RULES["exact_answer"], score=compare)
    rule.judge([Sample("", "", ["a", "b", "c"])], None)

    assert asked == ["a", "b"]


def test_each_rule_that_requires_an_answer_compares_with_several():
    """Such a rule reads one text, so it has to be given one answer at a time."""
    found = [
        kind
        for kind in BY_THEMSELVES
        if scored(
            kind, "<answer>1</answer>", ["1", "2"], **RULES[kind].example_pass.params
        ).failed
    ]

    assert found == []


def test_the_time_limit_is_that_of_all_answers_together(monkeypatch):
    asked = []
    now = iter(range(1_000))
    monkeypatch.setattr("trainer.rewards.rule.time.monotonic", lambda: next(now))

    def compare(sample, params):
        asked.append(sample.answer)
        return 0.0

    rule = replace(RULES["math_verify"], score=compare)
    params = rule.params_model(timeout_seconds=3)
    (outcome,) = rule.judge([Sample("", "", [str(n) for n in range(20)])], params)

    assert type(outcome) is Unscorable
    assert 2 <= len(asked) <= 5


def test_a_row_has_a_hundred_answers_at_most():
    assert read_answer([*range(100)]) == [str(number) for number in range(100)]
    with pytest.raises(ValueError, match="101 answers"):
        read_answer([*range(101)])
