from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import score


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("", 0.0),
        ("one two", 0.0),  # shorter than a run
        ("one two three four", 0.0),
        ("a b c a b c", -0.25),  # abc bca cab abc: 1 of 4 again
        ("a a a a a a", -0.75),
        ("A a A a A a", -0.75),
    ],
)
def test_the_share_of_runs_had_before_is_taken_away(completion, expected):
    assert score("repetition", completion) == pytest.approx(expected)


def test_the_penalty_scales_and_the_size_counts():
    completion = "a b a b a"  # ab ba ab ba

    assert score("repetition", completion, ngram_size=2) == -0.5
    assert score("repetition", completion, ngram_size=2, max_penalty=-4) == -2.0
    assert score("repetition", completion, max_penalty=0) == 0.0


def test_characters_are_counted_where_words_have_no_spaces():
    assert score("repetition", "好好好好", unit="words") == 0.0
    assert score("repetition", "好好\n好好", unit="characters", ngram_size=2) == (
        pytest.approx(-2 / 3)
    )


def test_case_counts_when_it_is_asked_to():
    found = score("repetition", "A a A", ngram_size=1, ignore_case=False)

    assert found == pytest.approx(-1 / 3)


@given(words=st.lists(st.sampled_from("abc"), max_size=30))
def test_it_agrees_with_counting_pairs_one_by_one(words):
    pairs = list(pairwise(words))
    num_again = sum(pair in pairs[:place] for place, pair in enumerate(pairs))

    found = score("repetition", " ".join(words), ngram_size=2)

    assert found == pytest.approx(-num_again / len(pairs) if pairs else 0.0)


def test_a_penalty_that_rewards_is_refused():
    with pytest.raises(ValueError, match="parameter max_penalty"):
        score("repetition", "", max_penalty=1)
