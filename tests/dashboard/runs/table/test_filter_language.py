"""Texts into trees, and errors that point at their place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.runs.table.parser import (
    FLAGS,
    OPERATORS,
    And,
    Compare,
    Flag,
    Node,
    Not,
    Or,
    QueryError,
    Text,
    Value,
    parse,
    quote,
    walk,
)

WORDS = st.text(min_size=1, max_size=12).filter(lambda text: text.strip())
COMPARISONS = st.builds(
    lambda key, operator, values: Compare(
        key=key,
        operator=operator,
        values=tuple(Value(text=v, is_quoted=True) for v in values),
        start=0,
        end=0,
    ),
    WORDS,
    st.sampled_from(sorted({*OPERATORS} - {":"})),
    st.lists(WORDS, min_size=1, max_size=1),
)
TERMS = st.one_of(
    st.builds(lambda text: Text(text=text, start=0, end=0), WORDS),
    st.builds(lambda name: Flag(name=name, start=0, end=0), st.sampled_from(FLAGS)),
    COMPARISONS,
)
TREES = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(node: Node) -> str:
    """A tree as someone could have typed it."""
    match node:
        case Text():
            return _quoted(node.text)
        case Flag():
            return node.name
        case Compare():
            values = ",".join(_quoted(value.text) for value in node.values)
            return f"{_quoted(node.key)}{node.operator}{values}"
        case Not():
            return f"-({write(node.node)})"
        case And():
            return "(" + " ".join(map(write, node.nodes)) + ")"
        case Or():
            return "(" + " or ".join(map(write, node.nodes)) + ")"
    raise AssertionError(node)


def shape(node: Node) -> object:
    """A tree without the places of its terms."""
    match node:
        case Text():
            return ("text", node.text)
        case Flag():
            return ("flag", node.name)
        case Compare():
            return (node.key, node.operator, *[value.text for value in node.values])
        case Not():
            return ("not", shape(node.node))
        case And() | Or():
            return (type(node).__name__, *map(shape, node.nodes))
    raise AssertionError(node)


@given(TREES)
def test_a_query_is_parsed(tree):
    assert shape(parse(write(tree))) == shape(tree)


def try_to_parse(text: str) -> Node | QueryError:
    try:
        return parse(text)
    except QueryError as error:
        return error


@given(st.text(max_size=60) | st.text(alphabet='ab"\\ ()-:=<>~!,', max_size=30))
def test_any_text_is_a_query_or_an_error_with_a_place_in_it(text):
    found = try_to_parse(text)

    if isinstance(found, QueryError):
        assert str(found).endswith(".")
        assert 0 <= found.start <= len(text)
        assert found.start < found.end <= len(text) + 1
    else:
        assert all(0 <= one.start < one.end <= len(text) for one in walk(found))


@given(WORDS)
def test_a_quoted_value_is_that_text_alone(text):
    tree = parse(f"tag:{quote(text)}")

    assert isinstance(tree, Compare)
    assert [value.text for value in tree.values] == [text]


def test_adjacent_terms_are_joined_by_and():
    tree = parse(
        'state:running reward/mean.last > 0.5 -archived "free text" name~sweep'
    )

    assert shape(tree) == (
        "And",
        ("state", "=", "running"),
        ("reward/mean.last", ">", "0.5"),
        ("not", ("flag", "archived")),
        ("text", "free text"),
        ("name", "~", "sweep"),
    )


def test_queries_parse_to_these_trees():
    expected: dict[str, object] = {
        "a or b c": ("Or", ("text", "a"), ("And", ("text", "b"), ("text", "c"))),
        "(a OR b) and c": (
            "And",
            ("Or", ("text", "a"), ("text", "b")),
            ("text", "c"),
        ),
        "not not a": ("not", ("not", ("text", "a"))),
        "x>=-1": ("x", ">=", "-1"),
        "state:queued,running": ("state", "=", "queued", "running"),
        'tag:"a, b",c': ("tag", "=", "a, b", "c"),
        "created>2026-11-01T12:30": ("created", ">", "2026-11-01T12:30"),
        '"odd metric".last < 1': ("odd metric.last", "<", "1"),
        "or: 3": ("or", "=", "3"),
        '"archived"': ("text", "archived"),
        "a-b #12 hello!": ("And", *(("text", t) for t in ("a-b", "#12", "hello!"))),
        "": ("And",),
        "  ": ("And",),
    }

    assert {text: shape(parse(text)) for text in expected} == expected


def test_an_error_has_a_span_and_a_message():
    for text, place, named in (
        ("state:", (6, 7), "after state:"),
        ("a (b or c", (2, 3), '"("'),
        ("a ) b", (2, 3), '")"'),
        ('tag:"base', (4, 9), "quote"),
        ("a and", (5, 6), "missing here"),
        ("or a", (0, 2), '"or"'),
        (">5", (0, 1), "before >"),
        ("lr < 1,2", (5, 8), "got 2"),
        ("()", (1, 2), "before this"),
        ("(" * 30, (21, 22), "20 levels"),
    ):
        with pytest.raises(QueryError) as caught:
            parse(text)

        assert named in str(caught.value), text
        assert (caught.value.start, caught.value.end) == place, text


def test_a_long_query_is_refused():
    with pytest.raises(QueryError, match="2,000"):
        parse("a" * 2_001)
    with pytest.raises(QueryError, match="100"):
        parse("a " * 101)
