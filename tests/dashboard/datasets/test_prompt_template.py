"""What prompt templates render, and what they refuse."""

import time
import tracemalloc
from typing import Any

import pytest

from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.prompt_template import PromptTemplate, TemplateFault
from dashboard.datasets.row import Row

VALUES: dict[str, Any] = {
    "question": "Capital of France?",
    "choices": ["Lyon", "Paris"],
    "level": 3,
    "share": 0.5,
    "easy": True,
    "note": None,
    "extra": {"source": {"name": "atlas"}, "items": [1, 2]},
    "two words": "ok",
    "letters": {"A": "Lyon", "B": "Paris"},
}
LETTERED = """{{ question }}

{% for option in choices %}
{{ loop.index0 | letter }}) {{ option }}
{% endfor %}
"""
RENDERED = [
    ("{{ question }}", "Capital of France?"),
    (LETTERED, "Capital of France?\n\nA) Lyon\nB) Paris"),
    (LETTERED.replace("\n", "\r\n"), "Capital of France?\n\nA) Lyon\nB) Paris"),
    ("{{ level }} {{ share }} {{ easy }}", "3 0.5 true"),
    ("{{ question }}\n\n{{ note }}", "Capital of France?"),
    ("{{ extra.source.name }}", "atlas"),
    ('{{ extra["items"][1] }}', "2"),
    ("{{ choices }}", '["Lyon", "Paris"]'),
    ('{{ row["two words"] }}', "ok"),
    ("{% if level > 2 %}hard{% else %}easy{% endif %}", "hard"),
    ("{{ 'hard' if level > 2 else 'easy' }}", "hard"),
    ("{{ choices | join(', ') }}", "Lyon, Paris"),
    ("{{ question | replace('France', 'Italy') }}", "Capital of Italy?"),
    ("{{ question.upper().split()[0] }}", "CAPITAL"),
    ("{{ note | default('none', true) }}", "none"),
    (
        "{% for letter, text in letters | items %}{{ letter }}={{ text }} {% endfor %}",
        "A=Lyon B=Paris ",
    ),
    ("{% raw %}{{ question }}{% endraw %}", "{{ question }}"),
    ("{# a comment #}<b>{{ question }}</b>", "<b>Capital of France?</b>"),
    ("{{ choices | length + 1 }}", "3"),
    ("{{ share | round(1) }} {{ level | round(-1000000000) }}", "0.5 0"),
]


@pytest.mark.parametrize(("source", "prompt"), RENDERED)
def test_a_template_renders_columns(source, prompt):
    assert PromptTemplate(source).render(VALUES) == prompt


REFUSED = [
    "{{ question",
    "{% for a in choices %}",
    "{% set a = question %}",
    "{% macro a() %}{% endmacro %}",
    "{% include 'a' %}",
    "{% import 'a' as b %}",
    "{% extends 'a' %}",
    "{% block a %}{% endblock %}",
    "{{ question * 9 }}",
    "{{ 9 ** 9 }}",
    "{{ '%9d' % level }}",
    "{{ range(9) }}",
    "{{ question.format() }}",
    "{{ question.ljust(9) }}",
    "{{ question | center(9) }}",
    "{{ question | attr('upper') }}",
    "{{ choices | map('upper') | list }}",
    "{% for a in choices recursive %}{{ loop(a) }}{% endfor %}",
    "{{ " + " ~ ".join(["question"] * 25) + " }}",
    "x" * 4_001,
    "{{ " + "(" * 1_500 + "level" + ")" * 1_500 + " }}",
    "{% for a in choices %}" * 25 + "{% endfor %}" * 25,
    "{{ extra.get(a=1, a=2) }}",
    "{{ level" + " | abs" * 60 + " }}",
    "{{ level | bounded }}",
]


@pytest.mark.parametrize("source", REFUSED, ids=lambda text: text[:20])
def test_a_template_that_could_grow_without_bound_is_refused(source):
    with pytest.raises(TemplateFault):
        PromptTemplate(source)


FAILING = [
    "{{ missing }}",
    "{{ extra.missing.name }}",
    "{{ question.__class__ }}",
    "{{ choices | sort(attribute='__class__') }}",
    "{{ question.split('') }}",
    "{{ 30 | letter }}",
    "{{ -3 | letter }}",
    "{{ 1.5 | letter }}",
    "{{ question | letter }}",
    "{% for a in level %}{% endfor %}",
    "{{ question + level }}",
    "{{ cycler }}",
    "{{ self }}",
    "{{ lipsum }}",
]


@pytest.mark.parametrize("test", ["odd", "even", "divisibleby 2"])
def test_a_templates_test_refuses_text_as_number(test):
    source = "{% for a in choices if a is " + test + " %}{{ a }}{% endfor %}"
    with pytest.raises(TemplateFault, match="divisibleby"):
        PromptTemplate(source).render(VALUES)


def test_numbers_are_tested_by_their_remainder():
    source = "{% for n in many if n is TEST %}{{ n }}{% endfor %}"
    rendered = {
        test: PromptTemplate(source.replace("TEST", test)).render(
            {"many": [1, 2, 3, 6]}
        )
        for test in ("odd", "even", "divisibleby 3")
    }
    assert rendered == {"odd": "13", "even": "26", "divisibleby 3": "36"}


@pytest.mark.parametrize("source", FAILING)
def test_a_template_that_cannot_be_filled_says_so(source):
    with pytest.raises(TemplateFault):
        PromptTemplate(source).render(VALUES)


def test_loops_and_texts_are_bounded():
    values = {"many": ["x" * 100] * 5_000, "text": "a" * 10**6}
    nested = "{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}"
    begin = time.monotonic()

    for source in (
        nested,
        "{{ many | join(text) }}",
        "{{ text | replace('a', text) }}",
        "{{ text }}" * 20,
    ):
        with pytest.raises(TemplateFault):
            PromptTemplate(source).render(values)

    assert time.monotonic() - begin < 60, "each ends by itself"


GROWING = [
    "{{ '\"'" + " | tojson" * 30 + " }}",
    "{{ quote" + " | tojson" * 30 + " }}",
    "{{ quote" + " | list | string" * 20 + " | length }}",
    "{{ [" + "text, " * 600 + "] | join | length }}",
    "{{ [" + "text, " * 600 + "] }}",
    "{{ [" + "text | list, " * 40 + "] | length }}",
    "{{ text | sort | length }}",
    "{% for a in [text + text] %}" * 2 + "{% endfor %}" * 2,
]


@pytest.mark.parametrize("source", GROWING, ids=range(len(GROWING)))
def test_a_value_that_grows_is_refused_before_it_is_large(source):
    values = {"text": "a" * 10**6, "quote": '"'}
    tracemalloc.start()

    with pytest.raises(TemplateFault):
        PromptTemplate(source).render(values)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


def _mapped(template: str, *, is_text: bool = False, **values: Any) -> Row | Refusal:
    record = Record(line=3, values=values)
    return map_record(record, Mapping(template=template), is_text=is_text)


def test_a_row_that_a_template_cannot_render_is_refused():
    for values in ({}, {"a": ""}, {"a": None}, {"a": "\ud800"}, {"a": "\x00"}):
        refused = _mapped("{{ a }}", **values)

        assert isinstance(refused, Refusal), values
        assert (refused.line, refused.column) == (3, None)


def test_cells_of_a_csv_file_are_parsed_for_a_template():
    row = _mapped(
        "{% for a in options %}{{ a }};{% endfor %}{{ code }}",
        is_text=True,
        options='["x", "y"]',
        code="007",
    )

    assert isinstance(row, Row)
    assert row.prompt == "x;y;007"
