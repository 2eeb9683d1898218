"""What is said of two sets of seeds, by the means of their runs."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from dashboard.insights.directions import Better, declare
from dashboard.insights.verdicts import Verdict, judge


def say(
    base: list[float],
    other: list[float],
    *,
    better: Better = "higher",
    is_paired: bool = False,
    statistic: str = "mean",
) -> Verdict:
    return judge(
        np.array(base)[:, None],
        np.array(other)[:, None],
        statistic=statistic,
        better=better,
        is_paired=is_paired,
    )


@pytest.mark.parametrize(
    ("better", "kind", "text"),
    [
        ("higher", "better", "distinguishable: better"),
        ("lower", "worse", "distinguishable: worse"),
        ("neither", "apart", "distinguishable: higher"),
    ],
)
def test_sets_apart_are_better_or_worse_by_the_direction(
    better: Better, kind: str, text: str
) -> None:
    found = say([0.1, 0.2, 0.15], [0.8, 0.9, 0.85], better=better)

    assert (found.kind, found.text) == (kind, text)
    assert found.difference == pytest.approx(0.7)


def test_sets_of_one_size_need_so_many_more_seeds_each() -> None:
    found = say([0.1, 0.5, 0.3], [0.3, 0.7, 0.5])

    # s² = 0.04 each, a difference of 0.2: n = 17 by the noncentral t, see
    # test_statistics_of_seeds.py; three are there.
    assert found.text == "not distinguishable yet: about 14 more seeds each"


def test_sets_of_unequal_size_need_so_many_seeds_in_all() -> None:
    found = say([0.1, 0.5, 0.3], [0.3, 0.7, 0.5, 0.5])

    assert re.fullmatch(
        r"not distinguishable yet: about \d+ seeds each are needed", found.text
    )


def test_next_to_no_difference_is_capped() -> None:
    found = say([0.1, 0.5, 0.3], [0.1, 0.5, 0.3001])

    assert found.text == "not distinguishable yet: more than 1,000 more seeds each"


def test_pairs_tell_what_the_sets_alone_do_not() -> None:
    base, other = [0.1, 0.5, 0.9], [0.2, 0.61, 0.99]

    assert say(base, other).kind == "open"
    paired = say(base, other, is_paired=True)
    assert (paired.kind, paired.is_paired) == ("better", True)


def test_a_pair_that_lacks_a_value_is_left_out() -> None:
    found = say([0.1, 0.5, math.nan], [0.2, 0.61, 0.99], is_paired=True)

    assert found.difference == pytest.approx(0.105)


@pytest.mark.parametrize("statistic", ["mean", "iqm"])
def test_seeds_that_are_equal_are_said_to_be(statistic: str) -> None:
    found = say([0.1145] * 3, [0.1145] * 5, statistic=statistic)

    assert (found.kind, found.text) == ("same", "equal in every seed")


def test_one_seed_tells_nothing_and_no_value_even_less() -> None:
    assert say([0.1], [0.2]).text == "nothing can be told from one seed each"
    assert say([0.1, 0.2], [0.2]).text == (
        "nothing can be told from one seed of one of the two"
    )
    assert say([0.1], [math.nan]).text == "no values in the window"
    assert say([0.1], [0.2]).interval is None


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("reward/mean", "higher"),
        ("reward/answer/mean", "higher"),
        ("reward/too_long/mean", "lower"),  # its weight is below 0
        ("eval/heldout/pass@8", "higher"),
        ("eval/heldout/frac_truncated", "lower"),
        ("time/step", "lower"),
        ("tokens_per_second", "higher"),
        ("kl/mean", "neither"),
        ("loss", "neither"),
        ("completion/mean_length", "neither"),
    ],
)
def test_directions_are_declared(metric: str, better: str) -> None:
    rules = [{"name": "answer", "weight": 1.0}, {"name": "too_long", "weight": -0.5}]

    assert declare(metric, {"reward": {"recipe": {"rules": rules}}}) == better
