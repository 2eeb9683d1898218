from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import recipe_of, score
from trainer.rewards.scoring import overlong_fraction
from trainer.rewards.spec import recipe_bounds


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
