"""Valid files of every format are read unchanged."""

import gzip
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.models import Upload
from dashboard.datasets.parsing.detection import detect, read_records
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from dashboard.datasets.row import Row
from tests.dashboard.datasets.parsing.bad_files import zstd
from tests.dashboard.datasets.test_upload import jsonl, parquet


def read(folder: Path, file_format: str, content: bytes) -> list[Any]:
    path = folder / "upload"
    path.write_bytes(content)
    return list(read_records(Source(path, file_format)))


def test_three_line_endings_are_read(tmp_path):
    for end, final in product(("\n", "\r\n", "\r"), (True, False)):
        last = end if final else ""
        lines = '{"a": 1}' + end + '{"a": 2}' + last
        table = "a,b" + end + "1,2" + end + "3,4" + last

        assert read(tmp_path, "jsonl", lines.encode()) == [
            Record(1, {"a": 1}),
            Record(2, {"a": 2}),
        ]
        assert read(tmp_path, "csv", table.encode()) == [
            Record(2, {"a": "1", "b": "2"}),
            Record(3, {"a": "3", "b": "4"}),
        ]


def test_marked_encodings_are_read(tmp_path):
    texts = {"jsonl": '{"é": "日本"}\n', "csv": "é\n日本\n"}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        for file_format, text in texts.items():
            (record,) = read(tmp_path, file_format, text.encode(encoding))

            assert record.values == {"é": "日本"}, (encoding, file_format)


def test_no_other_character_ends_a_line(tmp_path):
    for char in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"):
        csv = read(tmp_path, "csv", f"a\nx{char}y\nz\n".encode())

        assert [record.values["a"] for record in csv] == [f"x{char}y", "z"]
    for char in ("\u2028", "\u2029", "\x85"):
        jsonl = read(tmp_path, "jsonl", f'{{"a": "x{char}y"}}\n'.encode())

        assert jsonl == [Record(1, {"a": f"x{char}y"})]


def test_blank_lines_are_skipped_but_counted(tmp_path):
    content = b'\n{"a": 1}\n  \n\n{"a": 2}\n'

    assert [record.line for record in read(tmp_path, "jsonl", content)] == [2, 5]


def test_a_refused_line_does_not_hide_the_others(tmp_path):
    parsed = read(tmp_path, "jsonl", b'{"a": 1}\nx\n{"a": 2}\n[]\n{"a": 3}\n')

    assert [type(item).__name__ for item in parsed] == [
        "Record",
        "Refusal",
        "Record",
        "Refusal",
        "Record",
    ]
    assert [item.line for item in parsed] == [1, 2, 3, 4, 5]


def test_a_refused_entry_of_a_document_does_not_hide_the_others(tmp_path):
    content = b'[{"a": 1},{"a": 1,\n"a": 2},7,{"a": 3}]'

    parsed = read(tmp_path, "json", content)

    assert [type(item).__name__ for item in parsed] == [
        "Record",
        "Refusal",
        "Refusal",
        "Record",
    ]
    assert [(item.row, item.line) for item in parsed] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]
    assert not any(item.ends_file for item in parsed[1:3])


@pytest.mark.parametrize("length", [40, 80])
def test_an_entry_that_is_too_long_ends_its_document(tmp_path, monkeypatch, length):
    """Wherever it ends in the window."""
    monkeypatch.setattr("dashboard.datasets.parsing.json_reader.MAX_LINE_CHARS", 40)
    monkeypatch.setattr("dashboard.datasets.parsing.json_reader.PIECE_CHARS", 16)
    content = f'[{{"a": 1}},\n{{"a": "{"x" * length}"}}, {{"a": 3}}]'

    parsed = read(tmp_path, "json", content.encode())

    assert parsed[0] == Record(1, {"a": 1}, 1)
    assert [(item.line, item.ends_file) for item in parsed[1:]] == [(2, True)]


def test_invalid_json_is_read_up_to_the_error(tmp_path):
    parsed = read(tmp_path, "json", b'[{"a": 1},\n{"a": 2,\n"b" 3},\n{"a": 4}]')

    assert parsed[0] == Record(1, {"a": 1}, 1)
    assert [(item.row, item.line, item.ends_file) for item in parsed[1:]] == [
        (2, 3, True)
    ]


def test_a_line_that_is_too_long_does_not_shift_the_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.parsing.streams.MAX_LINE_CHARS", 20)
    content = b'{"a": 1}\n' + b"x" * 95 + b'\n{"a": 2}\n'

    parsed = read(tmp_path, "jsonl", content)

    assert [item.line for item in parsed] == [1, 2, 3]
    assert parsed[2] == Record(3, {"a": 2})


def test_quoted_csv_fields_keep_breaks_quotes_and_commas(tmp_path):
    content = 'q,a\n"one\r\ntwo, ""three""",4\nfive,6\n'

    assert read(tmp_path, "csv", content.encode()) == [
        Record(2, {"q": 'one\r\ntwo, "three"', "a": "4"}),
        Record(4, {"q": "five", "a": "6"}),
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_the_one_of_the_header(tmp_path, separator):
    content = f"a{separator}b\n1{separator}2\n"

    (record,) = read(tmp_path, "csv", content.encode())

    assert record.values == {"a": "1", "b": "2"}


def test_a_csv_field_may_exceed_the_default_limit_of_python(tmp_path):
    (record,) = read(tmp_path, "csv", b"a\n" + b"x" * 200_000 + b"\n")

    assert len(record.values["a"]) == 200_000


def test_parquet_keeps_types_and_nesting(tmp_path):
    rows = [
        {"q": "a", "n": 3, "x": 0.5, "l": [1, 2], "m": {"role": "user"}, "z": None},
        {"q": "b", "n": None, "x": 1.0, "l": [], "m": {"role": "tool"}, "z": None},
    ]
    path = tmp_path / "upload"
    pq.write_table(pa.Table.from_pylist(rows), path)

    assert list(read_records(Source(path, "parquet"))) == [
        Record(1, rows[0]),
        Record(2, rows[1]),
    ]


def test_a_repetitive_parquet_file_of_modest_size_is_accepted(tmp_path):
    path = tmp_path / "upload"
    pq.write_table(pa.table({"prompt": ["What is 2 + 2?"] * 50_000}), path)

    assert (
        sum(isinstance(r, Record) for r in read_records(Source(path, "parquet")))
        == 50_000
    )


def test_rows_past_the_limit_are_refused_without_reading_on(tmp_path, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.parsing.records.MAX_ROWS", 3)

    parsed = read(tmp_path, "jsonl", b'{"a": 1}\n' * 10)

    assert len(parsed) == 4
    assert "most 3 rows" in parsed[3].problem


DICT, MAP = {"a": 0.1, "b": 1}, {"k": "2"}
ROWS: list[dict[str, Any]] = [
    {"question": 'Say "é, 日本"\nand\tgo on; then?', "solution": "4", "level": 1},
    {"question": "3+3?", "solution": "6", "level": 2},
]
MAPPING = Mapping(prompt="question", answer="solution", columns=("level",))


def table(separator: str, line_end: str = "\n") -> str:
    def field(value: object) -> str:
        return '"' + str(value).replace('"', '""') + '"'

    lines = [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
    return "".join(separator.join(map(field, line)) + line_end for line in lines)


TEXTS = {
    "jsonl": jsonl(ROWS).decode(),
    "json": json.dumps({"about": "sums", "data": ROWS}, ensure_ascii=False, indent=1),
    "csv": table(","),
    "tsv": table("\t"),
}
FILES = {name: text.encode() for name, text in TEXTS.items()}
FILES["parquet"] = parquet(ROWS)
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


def rows_of(folder: Path, filename: str, content: bytes) -> list[Row | Refusal]:
    path = folder / "upload"
    path.write_bytes(content)
    found = detect(filename, path)
    source = Source(path, found.format, found.packing)
    # Without the process that the pages read it in.
    batches = read_batches if found.format == "parquet" else None
    items = chain.from_iterable(batches(source)) if batches else read_records(source)
    is_text = not Upload(format=found.format).has_types
    return [
        map_record(item, MAPPING, is_text=is_text) if isinstance(item, Record) else item
        for item in items
    ]


def expected(first_prompt: str = ROWS[0]["question"]) -> list[Row | Refusal]:
    return [
        Row(prompt=prompt, answer=row["solution"], columns={"level": row["level"]})
        for prompt, row in zip((first_prompt, "3+3?"), ROWS, strict=True)
    ]


def test_each_format_is_read_as_it_is_and_packed(tmp_path):
    for name, content in FILES.items():
        for suffix, pack in PACK.items():
            found = rows_of(tmp_path, f"sums.{name}{suffix}", pack(content))

            assert found == expected(), (name, suffix)


FIVE_PM = datetime(2026, 1, 2, 17, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (pa.array([FIVE_PM], pa.timestamp("us", "UTC")), "2026-01-02T17:00:00+00:00"),
        (pa.array([1_500], pa.timestamp("ns")), "1970-01-01T00:00:00.000001"),
        (pa.array([FIVE_PM.date()]), "2026-01-02"),
        (pa.array([FIVE_PM.time()]), "17:00:00"),
        (pa.array([timedelta(minutes=2)]), 120.0),
        (pa.array([Decimal("1.250")]), "1.250"),
        (pa.array([0.1], pa.float32()), 0.1),
        (pa.array([[0.1, None]], pa.list_(pa.float32())), [0.1, None]),
        (pa.array([{"a": 0.1, "b": 1}], pa.struct({"a": "f4", "b": "i4"})), DICT),
        (pa.array([[("k", Decimal(2))]], pa.map_("string", pa.decimal128(3))), MAP),
        (pa.array([b"a" * 16], pa.uuid()), "61616161-6161-6161-6161-616161616161"),
        (pa.array([None], pa.timestamp("us")), None),
    ],
)
def test_types_that_json_lacks_become_texts_and_numbers(values, kept, tmp_path):
    table = pa.table({"question": ["2+2?"], "solution": ["4"], "level": values})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)

    (row,) = rows_of(tmp_path, "a.parquet", buffer.getvalue())

    assert isinstance(row, Row)
    assert row.columns == {"level": kept}


def test_an_answer_keeps_the_digits_of_its_type(tmp_path):
    decimals = pa.array([Decimal("1.25"), Decimal("1E+2")], pa.decimal128(9, 2))
    for values, texts in (
        (decimals, ["1.25", "100.00"]),
        (pa.array([0.1, 3e10], pa.float32()), ["0.1", "30000000000.0"]),
    ):
        columns = {"question": ["a", "b"], "solution": values, "level": [1, 2]}
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)

        rows = rows_of(tmp_path, "a.parquet", buffer.getvalue())

        assert [row.answer for row in rows if isinstance(row, Row)] == texts


@pytest.mark.parametrize(
    ("filename", "content"),
    [
        ("a.jsonl", b'{"question": "2+2?", "solution": "4", "level": NaN}'),
        ("a.jsonl", b'{"question": "2+2?", "solution": "4", "level": [-Infinity]}'),
        ("a.parquet", parquet([{"question": "2+2?", "solution": "4", "level": b"a"}])),
    ],
)
def test_an_extra_value_that_json_lacks_is_left_empty(filename, content, tmp_path):
    (row,) = rows_of(tmp_path, filename, content)

    assert isinstance(row, Row)
    assert (row.columns, row.left_empty) == ({"level": None}, ("level",))


def test_each_text_format_is_read_in_each_encoding(tmp_path):
    for name, encoding, line_end in product(
        TEXTS, ("utf-8", "utf-8-sig", "utf-16", "utf-16-be"), ("\n", "\r\n")
    ):
        text = TEXTS[name].replace("\n", line_end)
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        # A line break within the quotes of a table is the file's own.
        own_break = line_end if name in ("csv", "tsv") else "\n"

        found = rows_of(tmp_path, f"sums.{name}", (mark + text).encode(encoding))

        first = ROWS[0]["question"].replace("\n", own_break)
        assert found == expected(first), (name, encoding, line_end)


@pytest.mark.parametrize(
    "content",
    [
        b"sep=;\nquestion;solution;level\n2+2?, now;4;1\n",
        b'"sep=;"\r\nquestion;solution;level\r\n2+2?, now;4;1\r\n',
        b"sep=\nquestion;solution;level\n2+2?, now;4;1\n",
        b"question;solution;level;\n2+2?, now;4;1;\n",
        b"question;solution;level;\n2+2?, now;4;1\n",
    ],
    ids=["named", "quoted", "unnamed", "closed", "header closed"],
)
def test_tables_of_spreadsheet_programs_are_read(content, tmp_path):
    (row,) = rows_of(tmp_path, "a.csv", content)

    assert row == Row(prompt="2+2?, now", answer="4", columns={"level": 1})


def test_a_value_too_much_is_refused_where_lines_end_with_the_separator(tmp_path):
    content = b"question,solution,level,\n2+2?,4,1,7\n"

    (refusal,) = rows_of(tmp_path, "a.csv", content)

    assert isinstance(refusal, Refusal)
    assert refusal.line == 2
