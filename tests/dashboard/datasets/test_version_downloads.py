"""Downloads of a version: lossless JSONL, and CSV without formulas."""

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from dashboard.datasets import row_exports, row_filters
from dashboard.datasets.imports import import_upload, store_upload
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.row_exports import defused
from dashboard.datasets.trash import trash_dataset
from dashboard.web.downloads import Streamed
from tests.dashboard.completions.factories import store_dataset

ODD: list[Any] = [
    1e16,
    -0.0,
    0.1,
    2**70,
    12345678901234567890.5,
    True,
    None,
    "007",
    "",
    "a\u2028b\u2029\x85\r\n\t\\ \"q\" 'p'",
    "\u202eevil\u2066 🧑‍🚀",
    [[], {}, {"b": 1, "a": [None]}],
    {"": 0},
]
ROWS = [
    Row(prompt=f"What? {i}\u2028=1", answer=str(value) or "-", columns={"x": value})
    for i, value in enumerate(ODD)
]
ROWS += [
    Row(
        prompt=[
            {"role": "system", "content": ""},
            {"role": "user", "content": "=1+1\n"},
        ],
        answer=" 5 ",
        columns={"x": -5},
    )
]
MAPPING = {"prompt": "q", "answer": "@solution", "columns": ["x"]}


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    return store_dataset(shared_team, ROWS, name="Sümme / №1", mapping=MAPPING)


def fetch(client: Client, version: DatasetVersion, suffix: str) -> Any:
    url = f"/alpha/datasets/{version.dataset_id}/download"
    return client.get(url, {"version": version.number, "format": suffix})


def test_a_downloaded_version_round_trips(alice_client, version, team):
    content = fetch(alice_client, version, "jsonl").getvalue()

    file = SimpleUploadedFile("rows.jsonl", content)
    upload = store_upload(team=team, user=None, file=file, dataset=None)
    again = import_upload(
        upload=upload, mapping=Mapping.from_json(MAPPING), name="Again", user=None
    )
    assert again.content_sha256 == version.content_sha256


def test_rows_without_answers_round_trip(alice_client, team):
    mapping = {"prompt": "text", "answer": None, "columns": ["answer"]}
    version = store_dataset(
        team, [Row(prompt="a", columns={"answer": 1})], name="Bare", mapping=mapping
    )

    content = fetch(alice_client, version, "jsonl").getvalue()

    assert json.loads(content) == {"text": "a", "answer": 1}


def test_several_answers_and_calls_of_tools_are_written_as_they_are(alice_client, team):
    arguments = {"to": "Bern", "by": 1}
    call = {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}
    version = store_dataset(
        team,
        [Row(prompt=[call], answer=["4", "=four"], columns={"z": 1, "a": 2})],
        name="Several",
        mapping=MAPPING | {"columns": ["z", "a"]},
    )

    line = fetch(alice_client, version, "jsonl").getvalue().decode()
    text = fetch(alice_client, version, "csv").getvalue().decode("utf-8-sig")

    assert line == (
        '{"@solution":["4","=four"],"a":2,"q":[{"role":"assistant","tool_calls":'
        '[{"function":{"arguments":{"to":"Bern","by":1}}}]}],"z":1}\n'
    )
    assert list(csv.reader(io.StringIO(text)))[1][1] == '["4","=four"]'


def test_the_file_is_named_after_dataset_and_version(alice_client, version):
    answer = fetch(alice_client, version, "jsonl")

    assert answer["Content-Type"] == "application/jsonl; charset=utf-8"
    text = answer["Content-Disposition"]
    assert text == "attachment; filename*=utf-8''S%C3%BCmme-1-v1.jsonl"


def test_csv_shows_the_same_values(alice_client, version):
    answer = fetch(alice_client, version, "csv")

    text = answer.getvalue().decode("utf-8-sig")
    records = list(csv.reader(io.StringIO(text, newline="")))
    assert records[0] == ["q", "'@solution", "x"]
    assert len(records) == 1 + len(ROWS)
    assert records[1][1:] == ["1e+16", "10000000000000000"]
    assert records[2][1:] == ["'-0.0", "0.0"]
    chat = records[-1]
    assert json.loads(chat[0])[1] == {"role": "user", "content": "=1+1\n"}
    assert chat[1:] == [" 5 ", "'-5"]


def test_cells_that_look_like_formulas_are_escaped():
    formulas = [
        *("=1+1", "+1", "-2+3", "@SUM(A1)", "−1", "=cmd|' /C calc'!A0"),
        *("\t=1", "\r=1", "\n=1", " =1", "\ttext", "\ufeff=1", "\u200b=1"),
        *('"=1+1', "'=1", "''@x", '" =1', "＂＝1", "“=1”"),
        *("＝1+1", "＋1", "－1", "＠x"),
    ]
    others = ["", "5", "1-2", "a=b", "mail@x", "What is -5?", "'a"]

    assert [defused(cell) for cell in formulas] == [f"'{cell}" for cell in formulas]
    assert [defused(cell) for cell in others] == others


@given(st.text("=+-@\t\r\n '\"＝＋－＠ab1", max_size=8))
def test_no_cell_begins_as_a_formula(cell):
    safe = defused(cell)

    assert safe in (cell, f"'{cell}")
    if cell.lstrip(" '\"")[:1] in tuple("=+-@\t\r\n＝＋－＠"):
        assert safe == f"'{cell}"


def test_rows_are_sent_while_they_are_read():
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    async def first() -> bytes:
        async for piece in Streamed(pieces()):
            return piece
        raise AssertionError

    assert asyncio.run(first()) == b"0"
    assert made == [0]


def test_memory_holds_a_part_of_the_rows(
    version, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(row_filters, "ROWS_AT_ONCE", 4)
    rows = row_exports.read_rows(version)

    with django_assert_num_queries(1):
        [next(rows) for _ in range(4)]
    with django_assert_num_queries(3):
        assert len(list(rows)) == len(ROWS) - 4


def test_a_version_with_missing_rows_is_not_downloaded(alice_client, version):
    rows = row_exports.read_rows(version)
    version.rows.filter(position=3).delete()

    answer = fetch(alice_client, version, "jsonl")

    address = f"/alpha/datasets/{version.dataset_id}/"
    assert (answer.status_code, answer["Location"]) == (302, address)
    text = alice_client.get(address).content.decode()
    assert f"1 of {len(ROWS)} rows" in text
    with pytest.raises(row_exports.RowsMissing):
        list(rows)


def test_memory_holds_one_of_rows_that_are_large(
    version, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(row_filters, "BYTES_AT_ONCE", 0)
    rows = row_exports.read_rows(version)

    for _ in ROWS:
        with django_assert_num_queries(1):
            next(rows)
    assert not list(rows)


def test_an_unknown_format_or_version_is_not_found(alice_client, version):
    assert fetch(alice_client, version, "exe").status_code == 404
    url = f"/alpha/datasets/{version.dataset_id}/download?version=2"
    assert alice_client.get(url).status_code == 404


def test_a_viewer_downloads_and_another_team_does_not(
    bob_client, charlie_client, version
):
    assert fetch(bob_client, version, "jsonl").status_code == 200
    assert fetch(charlie_client, version, "jsonl").status_code == 404


def test_a_trashed_dataset_can_be_downloaded(alice_client, version):
    trash_dataset(version.dataset, None)

    assert fetch(alice_client, version, "jsonl").status_code == 200
    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/")
    assert "Download JSONL" in page.content.decode()
