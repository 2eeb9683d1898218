"""Rules of a completion's length, and of a pattern."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import recipe_of, score, scored
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import overlong_fraction, score_all
from trainer.rewards.spec import recipe_bounds


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (10, 1.0),
        (20, 1.0),
        (9, 0.8),
        (6, 0.2),
        (5, 0.0),
        (21, 0.8),
        (25, 0.0),
        (0, 0.0),
    ],
)
def test_length_falls_evenly_outside_the_band(length, expected):
    band = {"minimum": 10, "maximum": 20, "soft_edge": 4}

    assert score("length", "x" * length, **band) == pytest.approx(expected)


def test_without_a_soft_edge_the_band_ends_at_once():
    assert score("length", "x" * 20, maximum=20) == 1.0
    assert score("length", "x" * 21, maximum=20) == 0.0


def test_words_stand_between_white_space():
    assert score("length", " one two\n\nthree ", unit="words", maximum=3) == 1.0
    assert score("length", "one two three four", unit="words", maximum=3) == 0.0


@pytest.mark.parametrize(
    ("match", "completion", "expected"),
    [
        ("contains", "the year 2024.", 1.0),
        ("contains", "the year", 0.0),
        ("whole", "2024", 1.0),
        ("whole", "2024.", 0.0),
        ("absent", "the year", 1.0),
        ("absent", "in 2024", 0.0),
    ],
)
def test_a_pattern_is_contained_whole_or_absent(match, completion, expected):
    assert score("regex", completion, pattern=r"\d{4}", match=match) == expected


def test_case_can_be_ignored():
    assert score("regex", "HELLO", pattern="hello") == 0.0
    assert score("regex", "HELLO", pattern="hello", ignore_case=True) == 1.0


def test_a_point_matches_a_line_break_if_the_pattern_has_its_flag():
    assert score("regex", "a\nb", pattern="a.b") == 0.0
    assert score("regex", "a\nb", pattern="(?s)a.b") == 1.0


@pytest.mark.parametrize("kind", ["regex", "format_tags"])
def test_a_pattern_that_would_take_minutes_is_refused(kind):
    slow = "(?:a?){999}" * 80
    name = "pattern" if kind == "regex" else "answer_pattern"

    with pytest.raises(ValueError, match="159,844 instructions"):
        score(kind, "a" * 50_000, **{name: slow})


NUMBERS = {"answer_kind": "numeric_answer"}
PUBLISHED = {"mode": "as_published"}
RIGHT, WRONG = r"$\boxed{7}$", r"$\boxed{8}$"


def ranked(
    *completions: str, answer: str | None = "7", **params: Any
) -> list[float | None]:
    samples = [Sample("p", text, answer) for text in completions]
    scores = score_all(recipe_of("length_rank", **params), samples)
    return [score.total for score in scores]


# What Open R1's len_reward gives for completions of these lengths, by its definition.
@pytest.mark.parametrize(
    ("right", "lengths", "expected"),
    [
        ((True, True, True), (20, 30, 40), (0.5, 0.0, -0.5)),
        ((True, True, True), (20, 25, 40), (0.5, 0.25, -0.5)),
        ((False, False, False), (20, 25, 40), (0.0, 0.0, -0.5)),
        ((False, True, False), (20, 40, 35), (0.0, -0.5, -0.25)),
        ((True, False), (20, 20), (0.0, 0.0)),
        ((True,), (20,), (0.0,)),
    ],
)
def test_open_r1s_len_reward(right, lengths, expected):
    texts = [
        (RIGHT if each else WRONG).ljust(n)
        for each, n in zip(right, lengths, strict=True)
    ]

    assert ranked(*texts, answer="$7$", **PUBLISHED) == pytest.approx(expected)


def test_a_row_without_mathematics_counts_as_right_as_published():
    texts = RIGHT, WRONG.ljust(40)

    assert ranked(*texts, answer="", **PUBLISHED) == [0.5, -0.5]
    assert ranked(*texts, answer="") == [None, None]


def test_lengths_are_counted_in_words_where_asked():
    found = ranked("7", "wwwwwwwwwwwwwwwwwww 7", "no, it is 7", unit="words", **NUMBERS)

    assert found == pytest.approx([0.5, 0.5 - 1 / 3, -0.5])


def test_an_unscorable_completion_leaves_the_others_scores(monkeypatch):
    from trainer.rewards.rule import Unscorable
    from trainer.rewards.rules.rightness import ANSWER_RULES

    rule = ANSWER_RULES["numeric_answer"]
    judge = type(rule).judge

    def fail_at_first(self, samples, params):
        return [Unscorable("The grader was lost."), *judge(self, samples, params)[1:]]

    monkeypatch.setattr(type(rule), "judge", fail_at_first)
    samples = [Sample("p", text, "7") for text in ("7", "so 7", "it is 7")]
    spec = recipe_of("length_rank", **NUMBERS).rules[0]

    from trainer.rewards.rules.length import score_lengths

    first, *others = score_lengths(samples, spec.checked_params())

    assert isinstance(first, Unscorable)
    assert others == [0.0, -0.5]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (101, -1.0)],
)
def test_the_penalty_grows_through_the_buffer(length, expected):
    band = {"limit": 100, "buffer": 20}

    found = score("soft_overlong", "x" * length, **band)

    assert found == pytest.approx(expected)
    assert str(found) != "-0.0"


def test_words_may_be_counted():
    assert score("soft_overlong", "a b c", unit="words", limit=4, buffer=2) == -0.5


@given(
    length=st.integers(0, 300),
    limit=st.integers(50, 200),
    buffer=st.integers(1, 50),
)
def test_trls_soft_overlong_punishment(length, limit, buffer):
    from trl.rewards import get_soft_overlong_punishment

    punish = get_soft_overlong_punishment(limit, buffer)
    (expected,) = punish(completion_ids=[[0] * length])

    found = score("soft_overlong", "x" * length, limit=limit, buffer=buffer)

    assert found == pytest.approx(expected)
    fraction = overlong_fraction(length, max_new_tokens=limit, buffer=buffer)
    assert found == pytest.approx(-fraction)  # which the engine takes, of tokens


def test_it_is_a_penalty_of_1_at_most():
    assert recipe_bounds(recipe_of("soft_overlong")) == (-1.0, 0.0)


def test_a_buffer_longer_than_the_limit_is_refused():
    with pytest.raises(ValueError, match="buffer 9"):
        score("soft_overlong", "", limit=8, buffer=9)


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


def test_words_may_be_counted_along_a_cosine():
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
