import ast
import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rewards.numbers import MAX_DEPTH, ArithmeticRefused, compute

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def test_arithmetic_is_computed_exactly():
    wrong = [
        (text, value, found)
        for text, value in [
            ("1", 1),
            ("1+2*3", 7),
            ("(1+2)*3", 9),
            ("(1 + 2) / 3", 1),
            ("7-5-1", 1),
            ("8/4/2", 1),
            ("1/3*3", 1),
            ("-3+5", 2),
            ("--3", 3),
            ("2*-3", -6),
            ("((((4))))", 4),
        ]
        if (found := compute(text).value) != value
    ]

    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "1 2",
        "(1)(2)",
        "1+",
        "(1",
        "1)",
        "1/0",
        "3**2",
        "7//2",
        "1.5",
        "1e3",
        "x",
        "__import__('os')",
        "1_000",
        "٣",
        "9" * 31,
        "1+" * 1_500 + "1",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ArithmeticRefused):
        compute(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3**2", 9),
        ("2**3**2", 512),
        ("-2**2", -4),
        ("2**-1", Fraction(1, 2)),
        ("7//2", 3),
        ("-7//2", -4),
        ("1.5*2", 3),
        ("4**.5", 2),
    ],
)
def test_pythons_other_operators_are_computed_only_on_request(text, value):
    assert compute(text, as_python=True).value == value


@pytest.mark.parametrize("text", ["9**9**9", "0**-1", "(-4)**.5", "007", "9.9**999999"])
def test_powers_without_a_reasonable_value_are_refused(text):
    with pytest.raises(ArithmeticRefused):
        compute(text, as_python=True)


def test_numerals_are_kept_in_order():
    assert compute("(10 + 2) * 10").numerals == ("10", "2", "10")


def test_parentheses_may_nest_up_to_the_bound():
    deepest = "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH

    assert compute(deepest).value == 1
    with pytest.raises(ArithmeticRefused):
        compute(f"({deepest})")


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.builds("({}{}{})".format, inner, st.sampled_from("+-*/"), inner)
        | inner.map("-{}".format)
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_values_agree_with_a_walk_of_pythons_own_syntax_tree(text):
    try:
        expected = _walk(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        with pytest.raises(ArithmeticRefused):
            compute(text)
    else:
        assert compute(text).value == expected


def _walk(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        return -_walk(node.operand)
    assert isinstance(node, ast.BinOp)
    return OPERATORS[type(node.op)](_walk(node.left), _walk(node.right))
