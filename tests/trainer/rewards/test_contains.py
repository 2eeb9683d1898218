from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score

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


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("a cat sat", 1.0),
        ("Cat!", 1.0),
        ("(cat)", 1.0),
        ("cat", 1.0),
        ("concatenate", 0.0),
        ("cats, then a cat", 1.0),
        ("cat_", 0.0),
        ("écat", 0.0),  # a letter beyond ASCII is one too
        ("cat7", 0.0),
    ],
)
def test_a_whole_word_has_no_letters_beside_it(completion, expected):
    assert score("contains", completion, phrases=["cat"], whole_words=True) == expected


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
