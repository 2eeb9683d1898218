"""The same rows come of every format, packing, encoding and line end."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from django.test import Client

from dashboard.datasets.models import DatasetVersion
from tests.dashboard.datasets.imports.test_upload import jsonl, parquet, upload
from tests.dashboard.datasets.parsing.bad_files import zstd

ROWS: list[dict[str, Any]] = [
    {"question": 'Say "é, 日本"\nand\tgo on; then?', "solution": "4", "level": 1},
    {"question": "3+3?", "solution": "6", "level": 2},
]
MAPPING = {
    "name": "Sums",
    "prompt": "question",
    "answer": "solution",
    "columns": ["level"],
}


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


def rows_of(client: Client, name: str, content: bytes) -> list[tuple[Any, ...]]:
    answer = client.post(upload(client, content, name), MAPPING)
    assert answer.status_code == 302, answer.content.decode()
    rows = DatasetVersion.objects.get().rows.order_by("position")
    return list(rows.values_list("prompt", "answer", "columns"))


EXPECTED = [(row["question"], row["solution"], {"level": row["level"]}) for row in ROWS]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("name", FILES)
def test_each_format_is_read_as_it_is_and_packed(
    alice_client: Client, name: str, packing: str
) -> None:
    content = PACK[packing](FILES[name])

    assert rows_of(alice_client, f"sums.{name}{packing}", content) == EXPECTED


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", TEXTS)
def test_each_text_format_is_read_in_each_encoding(
    alice_client: Client, name: str, encoding: str, line_end: str
) -> None:
    # A line break within the quotes of a table is the file's own, whatever it is.
    breaks = {"csv": line_end, "tsv": line_end}
    text = TEXTS[name].replace("\n", line_end)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    first = EXPECTED[0][0].replace("\n", breaks.get(name, "\n"))

    found = rows_of(alice_client, f"sums.{name}", (mark + text).encode(encoding))

    assert found == [(first, *EXPECTED[0][1:]), EXPECTED[1]]
