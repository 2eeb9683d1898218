"""What is wrong with a value is told with line, column, value and remedy."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.dashboard.datasets.imports.test_upload import upload
from tests.dashboard.datasets.parsing.bad_files import ASKS, parquet

GOOD = b'{"question": "2+2?", "key": "4", "level": 1}\n'


def _line(text: str) -> bytes:
    return GOOD + text.encode() + b"\n"


def _table(separator: str, *rows: str) -> bytes:
    lines = ["question,key,level", "2+2?,4,1", *rows]
    return "\n".join(lines).replace(",", separator).encode()


BAD = [
    ("jsonl", _line('{"question": "", "key": "4"}'), 2, "question", '""'),
    ("jsonl", _line('{"question": 7, "key": "4"}'), 2, "question", "7"),
    ("jsonl", _line('{"question": "a", "key": null}'), 2, "key", "null"),
    ("jsonl", _line('{"question": "a", "key": [4]}'), 2, "key", "[4]"),
    (
        "jsonl",
        _line('{"question": "a", "key": "4", "level": NaN}'),
        2,
        "level",
        "NaN",
    ),
    (
        "jsonl",
        _line('{"question": "a", "key": "4", "level": ["\\u0000"]}'),
        2,
        "level",
        "\\u0000",
    ),
    (
        "json",
        b"[" + GOOD.strip() + b',\n{"question": "a", "key": {}}]',
        2,
        "key",
        "{}",
    ),
    ("csv", _table(",", "3+3?,,2"), 3, "key", '""'),
    ("csv", _table(",", ",6,2"), 3, "question", '""'),
    ("tsv", _table("\t", "3+3?,,2"), 3, "key", '""'),
    (
        "parquet",
        parquet(question=ASKS, key=["4", None], level=[1, 2]),
        2,
        "key",
        "null",
    ),
    (
        "parquet",
        parquet(question=ASKS, key=["4", "6"], level=[b"x", b"y"]),
        1,
        "level",
        "b'x'",
    ),
]


@pytest.mark.parametrize(("suffix", "content", "line", "column", "value"), BAD)
def test_a_bad_value_is_named_by_its_column_on_the_page(
    alice_client: Client,
    suffix: str,
    content: bytes,
    line: int,
    column: str,
    value: str,
) -> None:
    url = upload(alice_client, content, f"sums.{suffix}")
    chosen = {"name": "Sums", "prompt": "question", "answer": "key"}

    answer = alice_client.post(url, {**chosen, "columns": ["level"]})

    assert answer.status_code == 422
    first = answer.context["refusals"].shown[0]
    assert (first.line, first.column) == (line, column)
    assert value in first.value
    assert first.problem.endswith(".")
    assert first.remedy.endswith(".")
    assert f'<td role="cell">{column}</td>' in answer.text
