import json
import math
import socket
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.rewards.scores import AT_ONCE, score

CITY = {
    "type": "object",
    "required": ["city"],
    "properties": {"city": {"type": "string"}, "size": {"type": "integer"}},
    "additionalProperties": False,
}
NUMBERS = "[" + "1," * 99_000 + "1]"
NAMES = json.dumps(dict.fromkeys(map(str, range(9_999))))
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def fits(document: str, schema: Any = True, **params: Any) -> float | None:
    return score("json_schema", document, wanted=json.dumps(schema), **params)


def test_a_document_fits_its_schema_or_not():
    wrong = [
        (document, expected, found)
        for document, expected in [
            ('{"city": "Paris"}', 1.0),
            ('{"city": "Paris", "size": 2}', 1.0),
            ('{"city": "Paris", "size": 2.5}', 0.0),
            ('{"city": "Paris", "mayor": "?"}', 0.0),
            ('{"size": 2}', 0.0),
            ("[]", 0.0),
            ('{"city": "Paris"', 0.0),
            ("{'city': 'Paris'}", 0.0),
            ('{"city": "Paris"} bye', 0.0),
            ("", 0.0),
        ]
        if (found := fits(document, CITY)) != expected
    ]

    assert wrong == []


def test_the_json_is_read_at_its_location():
    wrong = [
        (completion, source, expected, found)
        for completion, source, expected in [
            ("So:\n```json\n[1]\n```\nbye", "fence_or_whole", 1.0),
            ("[1]", "fence_or_whole", 1.0),
            ("So: [1]", "fence_or_whole", 0.0),
            ("```\n{\n```\n```\n[1]\n```", "fence", 1.0),
            ("```[1]```", "fence", 1.0),
            ("```json\n[1]\n```\nRun:\n```bash\nls\n```", "fence", 1.0),
            ("```bash\nls\n```\n```\n[1]\n```\n```sh\nls\n```", "fence", 1.0),
            ("```js\n[1]\n```", "fence", 1.0),
            ("~~~json\n[1]\n~~~\n```sh\nls\n```", "fence", 1.0),
            ("[1]", "fence", 0.0),
            ("```json\n[1]", "fence", 0.0),
            ("```json\n[1]\n```", "whole", 0.0),
            ("so <answer> [1] </answer>", "tags", 1.0),
            ("[1]", "tags", 0.0),
        ]
        if (found := fits(completion, source=source)) != expected
    ]

    assert wrong == []


def test_json_that_does_not_fit_may_have_a_score():
    assert fits("[]", CITY, valid_json_score=0.25) == 0.25
    assert fits("[", CITY, valid_json_score=0.25) == 0.0


@pytest.mark.parametrize(
    "document",
    [
        "NaN",
        "-Infinity",
        "1e999",
        "9" * 5_000,
        '{"a": 1, "a": 2}',  # readers disagree
        "[" * 33 + "]" * 33,
        "[" * 100_000,
        '{"a":' * 50_000,
    ],
)
def test_unreasonable_json_is_refused(document):
    assert fits(document) == 0.0


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^a+$"}, '"aa"', '"ab"'),
        ({"patternProperties": {"^n": {"type": "number"}}}, '{"n": 1}', '{"n": ""}'),
        (
            {"patternProperties": {"^n": True}, "additionalProperties": False},
            '{"n": 1}',
            '{"m": 1}',
        ),
        ({"additionalProperties": {"type": "null"}}, '{"a": null}', '{"a": 1}'),
        ({"properties": {"type": {"const": 1}}}, '{"type": 1}', '{"type": 2}'),
        ({"properties": {"pattern": {"const": 1}}}, '{"pattern": 1}', '{"pattern": 2}'),
        ({"uniqueItems": True}, '[1, true, "1", [1], {"a": 1}]', "[1, 1.0]"),
        ({"uniqueItems": True}, "[0, false]", '[{"a": 1, "b": 2}, {"b": 2, "a": 1}]'),
        ({"multipleOf": 0.01}, "1e300", "0.001"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, "1.0", "true"),
        ({"$schema": DRAFT, "type": "null"}, "null", "1"),
        ({"items": {"$ref": "#"}, "type": "array"}, "[[], [[]]]", "[[1]]"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "1", "3"),
        (True, "1", "one"),
    ],
)  # fmt: skip
def test_keywords_mean_what_the_draft_says(schema, good, bad):
    assert fits(good, schema) == 1.0
    assert fits(bad, schema) == 0.0


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "text"}, "2020-12, at type"),
        ([1], "JSON Schema"),
        ({"pattern": "(?=a)"}, "no look-around"),
        ({"patternProperties": {"(": {}}}, "not valid"),
        ({"$ref": "http://localhost/other.json"}, "not part of it"),
        ({"$ref": "#/parts/a", "parts": {"a": {"pattern": "("}}}, "not part of it"),
        ({"$ref": "#/$defs/b", "$defs": {}}, "not part of it"),
        ({"$ref": "#"}, "infinitely"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "infinitely"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "only https"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "inside"),
        ({"items": {"$id": "other"}}, "inside a schema"),
        ({"unevaluatedProperties": False}, "not supported"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_checked_by_is_refused(schema, words):
    with pytest.raises(ValueError, match=words):
        fits("{}", schema)


def test_a_schema_must_be_json():
    with pytest.raises(ValueError, match="wanted"):
        score("json_schema", "{}", wanted="{type: object}")


def test_nothing_is_fetched(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    with pytest.raises(ValueError, match="fetched"):
        fits("{}", {"properties": {"a": {"$ref": "http://example.com/a.json"}}})


TWICE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1},
                {"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 2},
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        (TWICE, "[" * 32 + "]" * 32),
        ({"pattern": "^(a+)+$"}, '"' + "a" * 100_000 + '!"'),
        ({"uniqueItems": True}, NUMBERS),
        ({"uniqueItems": True}, json.dumps([n * (2**61 - 1) for n in range(5_000)])),
        ({"items": {"type": "integer"}}, NUMBERS),
        ({"contains": {"const": 2}}, NUMBERS),
        ({"anyOf": [{"items": {"type": "string"}}] * 100}, NUMBERS),
        ({"additionalProperties": False}, NAMES),
        ({"enum": [list(range(1_000))]}, NUMBERS),
    ],
)  # fmt: skip
def test_a_check_takes_no_longer_than_it_may(schema, document):
    fits("0", schema)  # the schema is read
    start = time.process_time()

    fits(document, schema)

    assert time.process_time() - start < AT_ONCE


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["city", "size", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def is_json(text: str) -> bool:
    """Without the numbers that are none; a word in quotes is one as any other."""
    numbers: list[str] = []
    json.loads(text, parse_constant=numbers.append)
    return not numbers


@example(document="NaN")
@example(document=math.nan)
@given(document=DOCUMENTS)
def test_it_agrees_with_the_library_left_to_itself(document):
    from jsonschema import Draft202012Validator

    text = json.dumps(document, allow_nan=True)
    schema = {
        "anyOf": [
            CITY,
            {"type": "array", "uniqueItems": True, "contains": {"type": "string"}},
            {"patternProperties": {"^a": {"type": "null"}}, "minProperties": 1},
            {"multipleOf": 0.5, "exclusiveMaximum": 1e6},
        ]
    }

    expected = is_json(text) and Draft202012Validator(schema).is_valid(document)

    assert fits(text, schema) == float(expected)
