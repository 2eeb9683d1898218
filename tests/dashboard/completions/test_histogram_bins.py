import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.completions.signals import records

VALUES = st.floats(-1e6, 1e6, allow_nan=False)


def bin_of(value: float) -> int:
    (found,) = records.count_bins(np.array([value]))
    return int(found["bin"])


def test_every_bin_begins_where_the_one_below_ends():
    ends = [records.bin_bounds(number) for number in range(1, records.LAST_BIN + 1)]

    assert ends[0] == (0.0, 0.01)
    assert all(low[1] == high[0] for low, high in pairwise(ends))
    assert ends[-1] == (1_000.0, math.inf)


@given(VALUES)
def test_a_value_is_within_its_bin(value):
    number = bin_of(value)

    low, high = records.bin_bounds(number)
    slack = 1e-8 * abs(value)
    assert low - slack <= value <= high + slack


@given(VALUES.filter(bool))
def test_a_negative_value_mirrors_its_positive(value):
    assert bin_of(-value) == -bin_of(value)


def test_nothing_but_0_is_in_bin_0():
    assert (bin_of(0.0), bin_of(-0.0)) == (0, 0)
    assert (bin_of(1e-300), bin_of(-1e-300)) == (1, -1)


@pytest.mark.parametrize("value", [0.01, 0.1, 0.2, 0.8, 1.0, 1.25, 2.0, 1_000.0])
def test_a_round_value_begins_a_bin_also_as_a_sum(value):
    tenths = math.fsum([value / 10] * 10)

    assert records.bin_bounds(bin_of(value))[0] == value
    assert bin_of(tenths - 1e-16) == bin_of(value)


@given(st.lists(VALUES), st.lists(VALUES))
def test_counts_of_two_steps_add_up(one, other):
    def counts(values: list[float]) -> dict[int, int]:
        return dict(records.count_bins(np.array(values, float)).tolist())

    both = counts(one + other)

    parts = [counts(one), counts(other)]
    assert both == {r: sum(p.get(r, 0) for p in parts) for r in {*parts[0], *parts[1]}}
