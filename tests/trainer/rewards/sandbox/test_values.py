"""Values that left a sandbox compare as Python's own do, whatever they are."""

import operator
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import AT_ONCE
from trainer.rewards.sandbox.inside.messages import encode
from trainer.rewards.sandbox.values import (
    Incomparable,
    are_equal,
    compare,
    holds,
    is_true,
)

NUMBERS = (
    st.integers()
    | st.floats()
    | st.booleans()
    | st.fractions()
    | st.decimals(places=3, allow_nan=False, allow_infinity=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70)
)
HASHABLE = NUMBERS | st.text(max_size=3) | st.none() | st.binary(max_size=3)
RANGES = st.builds(
    range, st.integers(-4, 4), st.integers(-4, 4), st.sampled_from([-3, -1, 1, 2, 5])
)
VALUES = st.recursive(
    HASHABLE | RANGES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=6,
)
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}  # fmt: skip
ORDERED = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)


def has_nan(value: object) -> bool:
    """In a list, Python takes one and the same nan for itself."""
    return "nan" in repr(value).lower()


@given(VALUES, VALUES)
def test_values_are_equal_as_in_python(left, right):
    if not has_nan(left) and not has_nan(right):
        assert are_equal(encode(left), encode(right)) == (left == right)
        assert are_equal(encode(left), encode(left))


@given(VALUES)
def test_values_are_true_as_in_python(value):
    if not has_nan(value):
        assert is_true(encode(value)) == bool(value)


@given(RANGES, RANGES, st.integers(-5, 5) | st.floats(-5, 5))
def test_ranges_are_equal_and_hold_numbers_as_in_python(left, right, item):
    assert are_equal(encode(left), encode(right)) == (left == right)
    assert compare(encode(item), "in", encode(left)) == (item in left)
    assert not are_equal(encode(left), encode([*left]))


def test_a_long_range_costs_no_time():
    start = time.process_time()

    assert compare(10**60, "in", encode(range(0, 10**70, 2)))
    assert time.process_time() - start < AT_ONCE


def test_keys_and_items_of_a_dict_are_sets():
    assert are_equal(encode({"a": 1}.keys()), encode({"a"}))
    assert are_equal(encode({"a": 1}.items()), encode({("a", 1)}))
    assert not are_equal(encode({"a": 1}.keys()), encode(["a"]))


@given(ORDERED, ORDERED | st.lists(ORDERED, max_size=3), st.sampled_from([*OPERATORS]))
def test_values_compare_as_in_python(left, right, name):
    try:
        expected = OPERATORS[name](left, right)
    except TypeError:
        with pytest.raises(Incomparable):
            compare(encode(left), name, encode(right))
    else:
        assert compare(encode(left), name, encode(right)) == expected


@pytest.mark.parametrize(
    "forged",
    [
        {"n": "zz"}, {"n": 5}, {"q": ["1"]}, {"q": ["1", "0"]}, {"q": 3}, {"q": []},
        {"q": [1, 2]}, {"d": 3}, {"d": [3]}, {"s": "abc"}, {"t": None}, {"c": []},
        {"f": "1"}, {"o": 1}, {"o": [1, 1]}, {"x": 1}, {}, {"a": 1, "b": 2}, {"b": 1},
        {"r": 3}, {"r": [5, 5, 0]},
        {"q": ["f" * 9_999, "1"]}, {"n": "f" * 999_999},
    ],
)  # fmt: skip
def test_a_forged_value_is_equal_to_nothing(forged):
    sides = [{"step": 0}, {"value": 5}]
    formulas = [
        {"compare": sides, "operators": [name]}
        for name in ("==", "<", "<=", ">", ">=", "is")
    ]
    formulas.append({"compare": sides[::-1], "operators": ["in"]})
    formulas.append({"isclose": sides, "relative": 1, "absolute": 9})

    assert not any(holds(formula, [{"value": forged}]) for formula in formulas)


def test_long_values_cost_no_time():
    number = hex(3**60_000)
    is_less = {"compare": [{"step": 0}, {"value": 1}], "operators": ["<"]}
    begin = time.process_time()

    assert not compare("x" * 400_000, "in", [1] * 100_000)
    assert not holds(is_less, [{"value": {"q": [number, number]}}])
    assert are_equal(encode(Fraction(1, 3)), encode(Fraction(2, 6)))

    assert time.process_time() - begin < AT_ONCE
