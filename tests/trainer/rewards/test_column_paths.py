"""A rule's column may be a value inside one, by a dotted path."""

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.model_judge.question import make_question
from trainer.rewards.rule import NotApplicable, Sample, column_of

NESTED = {"a": {"b": [1, {"c": "x"}], "d.e": 2, "n": None}, "a.b": 3, "list": ["y"]}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("list", ["y"]),
        ("a.b", 3),  # a column of the whole name comes before a path
        ("a.b.1.c", "x"),
        ("list.0", "y"),
        ("a.n", None),
        ("list.1", "none"),
        ("list.-1", "none"),
        ("list.٠", "none"),  # a digit, but none that JSON has
        ("list." + "9" * 5_000, "none"),
        ("a.d.e", "none"),
        ("a.b.c", "none"),
        ("list.0.0", "none"),
        ("", "none"),
        (".", "none"),
    ],
)
def test_a_path_leads_through_objects_and_lists(path, found):
    assert column_of(NESTED, path, "none") == found


OPTIONS = {"options": ["Lyon", "Paris"], "A": "Lyon", "B": "Paris", "i": {"C": 7}}
RULES_WITH_COLUMNS = [
    (
        "countdown",
        "<answer>3 + 5 - 7</answer>",
        {"numbers": [3, 5, 7], "target": 1},
        {"numbers_column": "in.numbers", "target_column": "in.target"},
    ),
    ("equations", "1+1=2.", {"to": "2"}, {"target_column": "in.to"}),
    (
        "multiple_choice",
        "<answer>Paris</answer>",
        OPTIONS,
        {"options_column": "in.options"},
    ),
    (
        "multiple_choice",
        "<answer>Paris</answer>",
        OPTIONS,
        {"options_column": "in.A,in.B, in.i.C"},
    ),
    (
        "code_tests",
        "```python\ndef f():\n    return 1\n```",
        {"tests": "def check(candidate):\n    assert candidate() == 1", "name": "f"},
        {"tests_column": "in.tests", "entry_point_column": "in.name"},
    ),
    (
        "reasoning_gym",
        "<answer>7</answer>",
        {
            "entry": {
                "question": "4 + 3 =",
                "answer": "7",
                "metadata": {"expression": "4 + 3"},
            }
        },
        {"entry_column": "in.entry", "task": "chain_sum"},
    ),
]


@pytest.mark.parametrize(
    ("kind", "completion", "inner", "params"),
    RULES_WITH_COLUMNS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rules_column_may_be_a_path(kind, completion, inner, params):
    assert score(kind, completion, "B", {"in": inner}, **params) == 1.0

    missing = scored(kind, completion, "B", {"in": {}}, **params)

    assert missing.not_applicable == ["it"]
    assert "in." in missing.errors["it"]


def test_options_come_from_a_column_each():
    columns = {"A": "Lyon", "B": "Paris", "C": 3}
    found = {
        completion: score(
            "multiple_choice", completion, "B", columns, options_column="A, B, C"
        )
        for completion in (
            "<answer>Paris</answer>",
            "<answer>B</answer>",
            "<answer>3</answer>",
            "<answer>D</answer>",
        )
    }
    missing = scored(
        "multiple_choice", "<answer>B</answer>", "B", columns, options_column="A, D"
    )
    named_so = {"A, B": ["Rome", "Bern"], **columns}

    assert list(found.values()) == [1.0, 1.0, 0.0, 0.0]
    assert missing.not_applicable == ["it"]
    assert 'column "D"' in missing.errors["it"]
    assert (
        score(
            "multiple_choice",
            "<answer>Bern</answer>",
            "B",
            named_so,
            options_column="A, B",
        )
        == 1.0
    )


def test_a_judges_template_names_values_inside_a_column():
    sample = Sample("p", "c", ["4", "four"], {"extra": {"rubric": "be strict"}})

    question = make_question("", "{completion} {extra.rubric} {answer}", sample)

    assert dict(question.values) == {
        "answer": "4\nfour",
        "completion": "c",
        "extra.rubric": "be strict",
    }
    assert "be strict" in question.texts()[1]
    with pytest.raises(NotApplicable):
        make_question("", "{completion} {extra.level}", sample)


def test_a_judge_sees_what_tools_were_called_with():
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]

    question = make_question(
        "", "{prompt} {completion}", Sample("<u>1+2?", "3", messages=messages)
    )

    (prompt,) = (value for name, value in question.values if name == "prompt")
    assert prompt == 'user: 1+2?\n\nassistant: add({"a": 1})\n\ntool: 3'
