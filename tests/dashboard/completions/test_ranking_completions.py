import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dashboard.completions.search.columns import UNKNOWN_LENGTH
from dashboard.completions.search.filters import ranked, sortable

NUMBERS = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.25, 1e30, -1e-30, math.nan, math.inf]),
    min_size=1,
    max_size=40,
)


@given(NUMBERS, st.booleans(), st.data())
def test_a_stretch_of_ranks_is_that_of_all_sorted(numbers, is_descending, data):
    start = data.draw(st.integers(0, len(numbers) - 1))
    end = data.draw(st.integers(start + 1, len(numbers)))
    sign = -1 if is_descending else 1

    keys = sortable(np.array(numbers, np.float32), is_descending=is_descending)
    found = ranked(keys, start, end).tolist()

    def key(place: int) -> tuple[bool, float]:
        number = float(np.float32(numbers[place]))
        return math.isnan(number), 0.0 if math.isnan(number) else sign * number

    assert found == sorted(range(len(numbers)), key=key)[start:end]


def test_lengths_are_ranked_from_both_ends():
    lengths = np.array([3, 0, 2**31 - 1], "<u4")

    assert ranked(sortable(lengths, is_descending=True), 0, 3).tolist() == [2, 0, 1]
    assert ranked(sortable(lengths, is_descending=False), 0, 3).tolist() == [1, 0, 2]


def test_unknown_lengths_are_last_in_either_order():
    lengths = np.array([UNKNOWN_LENGTH, 3, 1], "<u4")

    assert ranked(sortable(lengths, is_descending=True), 0, 3).tolist() == [1, 2, 0]
    assert ranked(sortable(lengths, is_descending=False), 0, 3).tolist() == [2, 1, 0]
