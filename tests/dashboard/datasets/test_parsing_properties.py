"""Whatever the bytes, a reader answers with records and refusals, never an error."""

import csv
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.parsing.formats import READERS, read_records
from dashboard.datasets.parsing.records import Record
from dashboard.datasets.refusals import Refusal
from dashboard.datasets.rows import Row

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NAMES = st.text("abcde", min_size=1, max_size=3)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(NAMES, JSON, min_size=1, max_size=4), min_size=1)
SYNTAX = [bytes([byte]) for byte in b'{}[],:;"1 \n\r\t\x00\xff']
WORDS = [b'{"prompt": ', b'"a"', b"prompt,answer\n", "é\u2028".encode()]
TRAPS = [b"\\u0000", b"\\ud800", b"NaN", b"1e999", b"\xef\xbb\xbf", b"\xff\xfe"]
FRAGMENTS = st.lists(st.sampled_from([*SYNTAX, *WORDS, *TRAPS]), max_size=25).map(
    b"".join
)


def parse(file_format: str, content: bytes) -> list[Any]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return list(read_records(file_format, Path(file.name)))


def check_answers(file_format: str, content: bytes) -> None:
    parsed = parse(file_format, content)

    assert parsed
    for item in parsed:
        row = item
        if isinstance(item, Record):
            names = list(item.values) or ["prompt"]  # an empty object has none
            mapping = Mapping(prompt=names[0], columns=tuple(names))
            row = map_record(item, mapping, is_text=file_format == "csv")
        # What is kept can be stored; what is said can be shown.
        if isinstance(row, Row):
            assert "\x00" not in row.canonical()
            row.canonical().encode()
        else:
            assert isinstance(row, Refusal)
            assert row.problem
            assert row.remedy
            str(row).encode()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | FRAGMENTS)
def test_any_bytes_as_jsonl(content: bytes):
    check_answers("jsonl", content)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | FRAGMENTS)
def test_any_bytes_as_csv(content: bytes):
    check_answers("csv", content)


def _parquet(rows: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


SOUND = _parquet([{"prompt": "a" * 40, "answer": str(i)} for i in range(30)])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200).map(lambda middle: b"PAR1" + middle + b"PAR1"))
def test_any_bytes_as_parquet(content: bytes):
    check_answers("parquet", content)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
def test_a_parquet_file_with_one_byte_changed(place: int, change: int):
    broken = bytearray(SOUND)
    broken[place] ^= change

    check_answers("parquet", bytes(broken))


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_json_lines_come_back_as_they_were(rows: list[dict[str, Any]]):
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    assert [item.values for item in parse("jsonl", content.encode())] == rows


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1))
def test_csv_fields_come_back_as_they_were(rows: list[tuple[str, str]]):
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])

    parsed = parse("csv", file.getvalue().encode())

    assert [tuple(item.values.values()) for item in parsed] == rows


def test_every_format_has_a_property_above():
    readers: dict[str, Callable[..., Any]] = READERS

    assert set(readers) == {"jsonl", "csv", "parquet"}
