"""The same rows come of every format, packing, encoding and line end."""

from __future__ import annotations

import gzip
import json
from itertools import chain, product
from pathlib import Path
from typing import Any

from dashboard.datasets.imports.mapping import Mapping, map_record
from dashboard.datasets.models import Upload
from dashboard.datasets.parsing.detection import detect
from dashboard.datasets.parsing.formats import read_records
from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.records import Record
from dashboard.datasets.parsing.refusals import Refusal
from dashboard.datasets.parsing.source import Source
from dashboard.datasets.row import Row
from tests.dashboard.datasets.imports.test_upload import jsonl, parquet
from tests.dashboard.datasets.parsing.bad_files import zstd

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


def test_each_format_is_read_as_it_is_and_packed(tmp_path: Path) -> None:
    for name, content in FILES.items():
        for suffix, pack in PACK.items():
            found = rows_of(tmp_path, f"sums.{name}{suffix}", pack(content))

            assert found == expected(), (name, suffix)


def test_each_text_format_is_read_in_each_encoding(tmp_path: Path) -> None:
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
