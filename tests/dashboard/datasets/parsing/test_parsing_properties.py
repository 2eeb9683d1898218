"""For any bytes, a reader returns records and refusals, and never raises."""

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.parsing.detection import READERS, detect, read_records
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from dashboard.datasets.row import Row
from tests.dashboard.datasets.parsing.bad_files import zstd

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


def parse(file_format: str, content: bytes, packing: str = "") -> list[Any]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return list(read_records(Source(Path(file.name), file_format, packing)))


def check_answers(file_format: str, content: bytes, packing: str = "") -> None:
    parsed = parse(file_format, content, packing)

    assert parsed
    for item in parsed:
        row = item
        if isinstance(item, Record):
            names = list(item.values) or ["prompt"]  # an empty object has none
            mapping = Mapping(prompt=names[0], columns=tuple(names))
            row = map_record(item, mapping, is_text=file_format in ("csv", "tsv"))
        # What is kept can be stored; what is said can be shown.
        if isinstance(row, Row):
            assert "\x00" not in row.canonical()
            row.canonical().encode()
        else:
            assert isinstance(row, Refusal)
            assert row.problem
            assert row.remedy
            str(row).encode()


@given(st.binary(max_size=200) | FRAGMENTS)
def test_any_bytes_as_jsonl(content):
    check_answers("jsonl", content)


@given(st.binary(max_size=200) | FRAGMENTS | FRAGMENTS.map(lambda inner: b"[" + inner))
def test_any_bytes_as_json(content):
    check_answers("json", content)


@given(st.binary(max_size=200) | FRAGMENTS)
def test_any_bytes_as_csv(content):
    check_answers("csv", content)


@given(st.binary(max_size=200) | FRAGMENTS)
def test_any_bytes_as_tsv(content):
    check_answers("tsv", content)


PACKED = {
    "gzip": gzip.compress(b'{"prompt": "a"}\n' * 20, mtime=0),
    "zstd": zstd(b'{"prompt": "a"}\n' * 20),
}


@given(st.sampled_from(list(PACKED)), st.integers(0, 200), st.integers(0, 255))
def test_a_packed_file_with_one_byte_changed(packing, place, value):
    broken = bytearray(PACKED[packing])
    broken[place % len(broken)] = value

    check_answers("jsonl", bytes(broken), packing)


@given(st.sampled_from(["gzip", "zstd"]), st.binary(max_size=100), st.booleans())
def test_any_bytes_as_a_packed_file(packing, content, is_begun):
    magic = PACKED[packing][:10] if is_begun else b""

    check_answers("jsonl", magic + content, packing)


@given(
    st.sampled_from(["jsonl", "json", "csv", "tsv", "parquet", "txt", "csv.gz", ""]),
    st.binary(max_size=200) | FRAGMENTS,
)
def test_any_bytes_under_any_name_are_read_or_refused(suffix, content):
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        path = Path(file.name)
        try:
            detected = detect(f"rows.{suffix}", path)
        except ValueError:
            return
        assert list(read_records(Source(path, detected.format, detected.packing)))


def _parquet(rows: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


SOUND = _parquet([{"prompt": "a" * 40, "answer": str(i)} for i in range(30)])


# Each starts a process.
@pytest.mark.slow
@settings(max_examples=10)
@given(st.binary(max_size=200).map(lambda middle: b"PAR1" + middle + b"PAR1"))
def test_any_bytes_as_parquet(content):
    check_answers("parquet", content)


@settings(max_examples=4)
@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
def test_a_parquet_file_with_one_byte_changed(place, change):
    broken = bytearray(SOUND)
    broken[place] ^= change

    check_answers("parquet", bytes(broken))


def test_a_parquet_file_that_ends_its_reader():
    """The nullable flag of a column is flipped, and the library aborts."""
    broken = bytearray(SOUND)
    broken[SOUND.index(b"\x02\x18\x06answer")] ^= 57

    refusal = parse("parquet", bytes(broken))[-1]

    assert isinstance(refusal, Refusal)
    assert refusal.ends_file
    assert "SIGABRT" in refusal.value


@given(ROWS)
def test_json_lines_round_trip(rows):
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    assert [item.values for item in parse("jsonl", content.encode())] == rows


@given(ROWS, st.none() | st.integers(0, 3), st.integers(1, 30), st.booleans())
def test_a_json_list_round_trips(rows, indent, piece, is_wrapped):
    """For any layout and any size of the pieces read."""
    tree = {"about": [1, {"a": "]"}], "data": rows, "b": "{"} if is_wrapped else rows
    content = json.dumps(tree, ensure_ascii=False, indent=indent).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dashboard.datasets.parsing.json_reader.PIECE_CHARS", piece)
        parsed = parse("json", content)

    assert [item.values for item in parsed] == rows
    assert [item.row for item in parsed] == list(range(1, len(rows) + 1))


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1),
    st.sampled_from([("csv", ","), ("tsv", "\t")]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_fields_of_a_table_round_trip(rows, kind, encoding):
    file_format, delimiter = kind
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, delimiter=delimiter)
    writer.writerows([("a", "b"), *rows])

    parsed = parse(file_format, file.getvalue().encode(encoding))

    assert [tuple(item.values.values()) for item in parsed] == rows


def test_every_format_has_a_property_above():
    readers: dict[str, Callable[..., Any]] = READERS

    assert set(readers) == {"jsonl", "json", "csv", "tsv", "parquet"}
