"""Errors of a file name the line, the column, the value and the remedy."""

import gzip
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.datasets.limits import PEEK_ROWS
from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.models import Dataset, Upload
from dashboard.datasets.parsing.detection import detect, read_records
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.records import Parsed, Record, Refusal, bounded
from dashboard.datasets.parsing.streams import Source
from tests.dashboard.datasets.parsing.bad_files import (
    BadFile,
    list_bad_files,
    parquet,
    zstd,
)

GOOD = b'{"question": "2+2?", "key": "4", "level": 1}\n'
LEVEL = '{"question": "a", "key": "4", "level": %s}'

# Of each format, one that is refused when it is sent and one when it is imported.
THROUGH_THE_PAGES = (
    ("rows.jsonl", "broken json"),
    ("rows.jsonl", "empty prompt"),
    ("rows.json", "two lists"),
    ("rows.csv", "nameless column"),
    ("rows.csv", "empty answer"),
    ("rows.tsv", "too many fields"),
    ("rows.parquet", "cut short"),
)


@pytest.fixture(autouse=True)
def answered_at_once(monkeypatch):
    """Whatever its size, a file is imported before its form is answered."""
    monkeypatch.setattr("dashboard.datasets.imports.AT_ONCE_BYTES", 2**30)


def test_line_value_and_remedy_are_named(tmp_path):
    wrong = {}
    for bad in list_bad_files():
        path = tmp_path / "upload"
        path.write_bytes(bad.content)
        first = _first_refusal(bad, path)
        if first is None or not _is_named(bad, first):
            wrong[f"{bad.filename} {bad.name}"] = first

    assert wrong == {}


def test_a_missing_column_differs_from_null_and_a_broken_line_is_quoted(tmp_path):
    lines = (b'{"answer": "4"}', b'{"prompt": null}', b'{"prompt": "pens", "a" 1}')
    seen = []
    for line in lines:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(b'{"prompt": "a", "answer": "b"}\n' + line)
        bad = BadFile("", "rows.jsonl", b"", 2, "", "")
        refusal = _first_refusal(bad, path)
        assert refusal
        seen.append(refusal.value)

    assert seen == ["", "null", '{"prompt": "pens", "a" 1}']


def _first_refusal(
    bad: BadFile, path: Path, mapping: Mapping | None = None
) -> Refusal | None:
    detected = detect(bad.filename, path)
    source = Source(path, detected.format, detected.packing)
    items = list(islice(_read(source), PEEK_ROWS))
    names = {n: None for item in items if isinstance(item, Record) for n in item.values}
    is_text = not Upload(format=detected.format).has_types
    for item in items:
        row = (
            map_record(item, mapping or _mapping(list(names)), is_text=is_text)
            if isinstance(item, Record)
            else item
        )
        if isinstance(row, Refusal):
            return row
    return None


def _read(source: Source) -> Iterator[Parsed]:
    """Parquet without the process that the pages read it in."""
    if source.format == "parquet":
        return bounded(chain.from_iterable(read_batches(source)))
    return read_records(source)


def _mapping(names: list[str]) -> Mapping:
    return Mapping(
        prompt="prompt" if "prompt" in names else names[0],
        answer="answer" if "answer" in names else None,
        columns=("level",) if "level" in names else (),
    )


def _is_named(bad: BadFile, first: Refusal) -> bool:
    str(first).encode()
    return (
        (first.line or 0) == (bad.line or 0)
        and first.row == bad.row
        and bad.value in first.value
        and len(first.value) <= 110
        and first.problem.endswith(".")
        and bad.remedy in first.remedy
    )


def _line(text: str) -> bytes:
    return GOOD + text.encode() + b"\n"


def _table(separator: str, *rows: str) -> bytes:
    lines = ["question,key,level", "2+2?,4,1", *rows]
    return "\n".join(lines).replace(",", separator).encode()


def _parquet(**columns: Any) -> bytes:
    return parquet(question=["2+2?", "3+3?"], **columns)


def test_a_bad_value_is_named_by_its_column(tmp_path):
    mapping = Mapping(prompt="question", answer="key", columns=("level",))
    of_list = b"[" + GOOD.strip() + b',\n{"question": "a", "key": {}}]'
    null_answer = _parquet(key=["4", None], level=[1, 2])
    bytes_answer = _parquet(key=[b"x", b"y"], level=[1, 2])
    wrong = {}
    for suffix, content, line, column, value in (
        ("jsonl", _line('{"question": "", "key": "4"}'), 2, "question", '""'),
        ("jsonl", _line('{"question": 7, "key": "4"}'), 2, "question", "7"),
        ("jsonl", _line('{"question": "a", "key": null}'), 2, "key", "null"),
        ("jsonl", _line('{"question": "a", "key": [[4]]}'), 2, "key", "[4]"),
        ("jsonl", _line(LEVEL % '["\\u0000"]'), 2, "level", "\\u0000"),
        ("json", of_list, 2, "key", "{}"),
        ("csv", _table(",", "3+3?,,2"), 3, "key", '""'),
        ("csv", _table(",", ",6,2"), 3, "question", '""'),
        ("tsv", _table("\t", "3+3?,,2"), 3, "key", '""'),
        ("parquet", null_answer, 2, "key", "null"),
        ("parquet", bytes_answer, 1, "key", "b'x'"),
    ):
        path = tmp_path / "upload"
        path.write_bytes(content)
        bad = BadFile("", f"rows.{suffix}", content, line, value, remedy="")
        first = _first_refusal(bad, path, mapping)
        place = first and (first.line, first.column, value in first.value)
        if place != (line, column, True):
            wrong[content] = first

    assert wrong == {}


def test_the_page_names_the_column_of_a_bad_value(alice_client, team):
    content = b'{"question": "2+2?"}\n{"question": ""}\n'
    file = SimpleUploadedFile("rows.jsonl", content)
    sent = alice_client.post("/alpha/datasets/upload", {"file": file})
    chosen = {"name": "Sums", "prompt": "question"}

    page = alice_client.post(sent["Location"], chosen)

    assert page.status_code == 422
    assert page.context["problems"][0]["group"].column == "question"


@pytest.mark.usefixtures("parquet_in_process")
def test_pages_list_errors_and_nothing_is_imported(alice_client, team):
    by_name = {(bad.filename, bad.name): bad for bad in list_bad_files()}
    for bad in map(by_name.__getitem__, THROUGH_THE_PAGES):
        file = SimpleUploadedFile(bad.filename, bad.content)

        answer = alice_client.post("/alpha/datasets/upload", {"file": file})
        if answer.status_code == 302:
            answer = _import(alice_client, answer["Location"], bad)

        assert answer.status_code == 422, bad.name
        assert _is_named(bad, answer.context["refusals"].groups[0].first[0]), bad.name
    assert Dataset.objects.count() == 0


def _import(client: Client, url: str, bad: BadFile):
    page = client.get(url)
    assert page.status_code == 200
    names = [name for name, _ in page.context["form"].fields["prompt"].choices]
    mapping = {"name": "Bad", "prompt": "prompt" if "prompt" in names else names[0]}
    mapping["answer"] = "answer" if "answer" in names else ""
    mapping["columns"] = [name for name in names if name == "level"]
    return client.post(url, mapping)


FOREIGN = [
    ("rows.jsonl", b"", "empty"),
    ("rows.xlsx", b"PK\x03\x04", "spreadsheet"),
    ("rows.xls", b"\xd0\xcf\x11\xe0\xa1", "spreadsheet"),
    ("rows.jsonl.gz", b"\x1f\x8b\x08", "damaged"),
    ("rows.jsonl.gz", gzip.compress(b""), "empty"),
    ("rows.jsonl.gz", gzip.compress(gzip.compress(b"a")), "compressed twice"),
    ("rows.jsonl.gz", zstd(gzip.compress(b"a")), "compressed twice"),
    ("rows.tar.gz", gzip.compress(b"a" * 257 + b"ustar"), "tar archive"),
    ("rows.csv.gz", gzip.compress(b"a,b\n" * 99)[:-9], "incomplete"),
    ("rows.jsonl.bz2", b"BZh9", "bzip2"),
    ("rows.jsonl.xz", b"\xfd7zXZ\x00", "xz"),
    ("rows.jsonl.lz4", b"\x04\x22\x4d\x18", "lz4"),
    ("rows.jsonl.7z", b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    ("rows.rar", b"Rar!\x1a\x07", "RAR"),
    ("rows.jsonl.zst", b"\x28\xb5\x2f\xfd", "damaged"),
    ("rows.jsonl.zst", zstd(b"a" * 99)[:-3], "incomplete"),
    ("rows.arrow", b"ARROW1\x00\x00", "Arrow"),
    ("rows.avro", b"Obj\x01", "Avro"),
    ("rows.h5", b"\x89HDF\r\n", "HDF5"),
    ("rows.db", b"SQLite format 3\x00", "SQLite"),
    ("rows.npy", b"\x93NUMPY", "NumPy"),
    ("rows.pdf", b"%PDF-1.7", "PDF"),
    ("rows.pkl", b"\x80\x04\x95abc", "pickle"),
    ("rows.jsonl", b"\x80\x05\x95abc", "pickle"),
    ("rows.parquet", b"prompt\na\n", "Parquet file"),
    ("rows.txt", b"hello", "rows.txt"),
    ("rows", b"hello", "TSV or Parquet"),
    ("../../etc/passwd", b"root", "TSV or Parquet"),
]


def test_an_unsupported_file_is_detected_by_its_first_bytes(tmp_path):
    path = tmp_path / "upload"
    for filename, content, fragment in FOREIGN:
        path.write_bytes(content)

        with pytest.raises(ValueError, match=re.escape(fragment)):
            detect(filename, path)


def test_an_unsupported_file_is_refused_on_upload(alice_client, team):
    before = _stored_files()
    for filename, content, fragment in (FOREIGN[0], FOREIGN[1], FOREIGN[-1]):
        file = SimpleUploadedFile("x", content)
        file._name = filename

        answer = alice_client.post("/alpha/datasets/upload", {"file": file})

        assert answer.status_code == 422
        assert fragment in answer.text
    assert Upload.objects.count() == 0
    assert _stored_files() == before


def _stored_files() -> set[Path]:
    return set(Upload(stored_name="x").path.parent.glob("*"))
