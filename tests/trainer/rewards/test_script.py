from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score


@pytest.mark.parametrize(
    ("completion", "scripts", "expected"),
    [
        ("Because 2 > 1!", "Latin", 1.0),
        ("naïve café", "Latin", 1.0),
        ("cafe\u0301", "Latin", 1.0),  # an accent of its own belongs to its letter
        ("так", "Latin", 0.0),
        ("так", "Cyrillic", 1.0),
        ("ab二三", "Latin", 0.5),
        ("ab二三", "Latin,Han", 1.0),
        ("カーと車", "Han,Hiragana,Katakana", 1.0),
        ("नमस्ते", "Devanagari", 1.0),
        ("因此 \\frac{1}{2}", "Han", 1.0),
        ("12 + 3 = 15", "Latin", 0.0),
        ("", "Latin", 0.0),
    ],
)
def test_letters_count_and_nothing_else(completion, scripts, expected):
    assert score("script", completion, scripts=scripts) == expected


def test_a_smaller_share_may_be_enough():
    assert score("script", "abc二", minimum_share=0.75) == 1.0
    assert score("script", "ab二三", minimum_share=0.75) == pytest.approx(2 / 3)


def test_one_block_alone_can_be_looked_at():
    completion = "<think>так</think> because"

    assert score("script", completion, tag="think", scripts="Cyrillic") == 1.0
    assert score("script", "because", tag="think") == 0.0


def test_names_of_latex_commands_count_when_asked_to():
    assert score("script", "因 \\ab", scripts="Han", ignore_latex=False) == (
        pytest.approx(1 / 3)
    )


@pytest.mark.parametrize(
    "scripts", ["", "English", "Any", "Lu", "latin", "Latin,", "L"]
)
def test_scripts_that_unicode_does_not_know_are_refused(scripts):
    with pytest.raises(ValueError, match="parameter scripts"):
        score("script", "", scripts=scripts)
