"""Exports a version as JSONL for programs or CSV for spreadsheets."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row, as_json, prompt_as_json
from dashboard.datasets.row_filters import read_rows_at
from dashboard.web.downloads import Streamed, attach

# What starts a formula in spreadsheets, also in full width. They skip white space,
# quotes and invisible characters before it.
_SKIPPED = "\\s\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\uff02\uff07\ufeff\u200b"
_BEGINNINGS = "\\t\\r\\n=+@\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b\u2212-"
_FORMULA = re.compile(f"[{_SKIPPED}]*[{_BEGINNINGS}]")


class RowsMissing(ValueError):
    """The export would lack rows."""

    code = "datasets.rows_missing"


def check_rows(version: DatasetVersion) -> None:
    """RowsMissing, before anything is sent."""
    num_missing = version.num_rows - version.rows.count()
    if num_missing:
        raise RowsMissing(
            f"The database lacks {num_missing:,} of {version.num_rows:,} rows of "
            f"{version}. Import it again as a new version."
        )


def read_rows(version: DatasetVersion) -> Iterator[Row]:
    """Read the rows in their order, a few in memory at a time.

    RowsMissing if they are deleted meanwhile, which aborts the download.
    """
    num_read = 0
    for row in read_rows_at(version.rows.all(), range(version.num_rows)):
        yield row.as_row()
        num_read += 1
    if num_read < version.num_rows:
        raise RowsMissing(f"{version} was deleted during the download.")


def write_jsonl(version: DatasetVersion) -> Iterator[str]:
    """Write one object a line, under the names of the file that the rows came from."""
    for row in read_rows(version):
        prompt, record = _prompt_name(version), _record(version, row)
        parts = [
            f"{as_json(name)}:{(prompt_as_json if name == prompt else as_json)(value)}"
            for name, value in sorted(record.items())
        ]
        yield f"{{{','.join(parts)}}}\n"


def write_csv(version: DatasetVersion) -> Iterator[str]:
    candidates = [_prompt_name(version), _answer_name(version)]
    candidates += version.mapping.get("columns", [])
    names = [name for name in candidates if name is not None]
    records = (_record(version, row) for row in read_rows(version))
    rows = ([_cell(record.get(name)) for name in names] for record in records)
    return csv_lines(names, rows)


WRITERS = {"jsonl": write_jsonl, "csv": write_csv}
TYPES = {"jsonl": "application/jsonl", "csv": "text/csv"}


def filename(version: DatasetVersion, suffix: str) -> str:
    """Return the dataset's name, restricted to portable characters, and the version."""
    name = re.sub(r"[^\w.-]+", "-", version.dataset.name).strip("-.")
    return f"{name or 'dataset'}-v{version.number}.{suffix}"


def defused(text: str) -> str:
    """Escape the cell if a spreadsheet could read it as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def joined(parts: Iterable[str], size: int = 64 * 2**10) -> Iterator[bytes]:
    """Pieces large enough to be worth sending."""
    waiting, length = [], 0
    for part in parts:
        waiting.append(part)
        length += len(part)
        if length >= size:
            yield "".join(waiting).encode()
            waiting, length = [], 0
    if waiting:
        yield "".join(waiting).encode()


def _prompt_name(version: DatasetVersion) -> str:
    return str(version.mapping.get("prompt") or "prompt")


def _answer_name(version: DatasetVersion) -> str | None:
    """Return the column's name; None for a version whose rows have no answers."""
    name: str | None = version.mapping.get("answer", "answer")
    return name


def _record(version: DatasetVersion, row: Row) -> dict[str, Any]:
    record = {**row.columns, _prompt_name(version): row.prompt}
    if name := _answer_name(version):
        record[name] = row.answer
    return record


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return defused(value if isinstance(value, str) else as_json(value))


def csv_lines(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Write a table as CSV, a line at a time; its cells are defused already."""
    writer = csv.writer(_CsvLine())
    yield writer.writerow([defused(name) for name in names])
    for row in rows:
        yield writer.writerow(row)


class _CsvLine:
    """A file for csv to write to: `writerow` gives the line back."""

    def write(self, line: str) -> str:
        return line


def send_rows(version: DatasetVersion, suffix: str) -> Streamed:
    """Send a file of this format, after `check_rows`."""
    return attach(
        joined(WRITERS[suffix](version)),
        filename=filename(version, suffix),
        content_type=f"{TYPES[suffix]}; charset=utf-8",
    )
