from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score


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


def test_a_point_matches_a_line_break_when_the_pattern_says_so():
    assert score("regex", "a\nb", pattern="a.b") == 0.0
    assert score("regex", "a\nb", pattern="(?s)a.b") == 1.0


@pytest.mark.parametrize("kind", ["regex", "format_tags"])
def test_a_pattern_that_would_take_minutes_is_refused(kind):
    slow = "(?:a?){999}" * 80
    name = "pattern" if kind == "regex" else "answer_pattern"

    with pytest.raises(ValueError, match="159,844 instructions"):
        score(kind, "a" * 50_000, **{name: slow})
