"""Tables as CSV, JSON lines or Parquet, written while they are read; which steps."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django import forms
from django.utils.http import urlencode

from dashboard.completions.forms import FilterForm
from dashboard.datasets.row_exports import csv_lines, defused, joined

ROW_GROUP_ROWS = 1_000
ROW_GROUP_BYTES = 8 * 2**20
LARGEST_STEP = 2**31 - 1

Record = dict[str, Any]
TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows by column name; missing values are left out.

    `maps` are columns that hold an object of numbers, with the keys that occur: CSV has
    a column `rules/<name>` for each, Parquet a struct.
    """

    columns: dict[str, pa.DataType]
    rows: Iterable[Record]
    maps: dict[str, list[str]]

    @property
    def schema(self) -> pa.Schema:
        """The schema in Parquet, without maps, which Hugging Face `datasets` refuses.
        Parquet has no struct without fields, so such a column is null.
        """
        structs = {
            column: pa.struct(dict.fromkeys(keys, pa.float64())) if keys else pa.null()
            for column, keys in self.maps.items()
        }
        return pa.schema(list((self.columns | structs).items()))


def write_jsonl(table: Table) -> Iterator[bytes]:
    return joined(_line(table, row) for row in table.rows)


def _line(table: Table, row: Record) -> str:
    ordered = {name: row.get(name) for name in table.columns}
    return f"{_as_json(ordered)}\n"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text)


def _as_text(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


def write_csv(table: Table) -> Iterator[bytes]:
    cells = list(_csv_cells(table))
    rows = ([_cell(read(row)) for _, read in cells] for row in table.rows)
    return joined(csv_lines([name for name, _ in cells], rows))


def _csv_cells(table: Table) -> Iterator[tuple[str, Callable[[Record], Any]]]:
    for column in table.columns:
        if column not in table.maps:
            yield column, lambda row, c=column: row.get(c)  # type: ignore[misc]  # bound at once
            continue
        for name in table.maps[column]:
            yield (
                f"{column}/{name}",
                lambda row, c=column, n=name: (row.get(c) or {}).get(n),  # type: ignore[misc]  # bound at once
            )


def _cell(value: Any) -> str:
    """Numbers stay numbers; text that a spreadsheet could read as a formula is
    escaped."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case datetime():
            return value.isoformat()
        case str():
            return defused(value)
    return defused(_as_json(value))


def write_parquet(table: Table) -> Iterator[bytes]:
    """Group by group, so that memory holds one of them; compressed with zstd."""
    sink, schema = Sink(), table.schema
    empty = {column: None for column, keys in table.maps.items() if not keys}
    with pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"), schema, compression="zstd"
    ) as writer:
        for rows in _groups(table.rows):
            rows = [row | empty for row in rows]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            yield sink.taken()
    yield sink.taken()


def _groups(rows: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield some rows at a time, fewer where their texts are long."""
    group: list[Record] = []
    num_bytes = 0
    for row in rows:
        group.append(row)
        num_bytes += sum(len(v) for v in row.values() if isinstance(v, str))
        if len(group) >= ROW_GROUP_ROWS or num_bytes >= ROW_GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


WRITERS: dict[str, Callable[[Table], Iterator[bytes]]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def jsonl_bytes(table: Table, num_rows: int) -> tuple[int, int]:
    """Return the size of the first rows as JSON lines, and their number."""
    lines = [len(_line(table, row).encode()) for row in islice(table.rows, num_rows)]
    return sum(lines), len(lines)


class Sink(io.RawIOBase):
    """A file without seek, whose bytes are consumed while it is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0
        self.num_bytes = 0  # written since the last read

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._at += len(data)
        self.num_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def taken(self) -> bytes:
        data, self._parts, self.num_bytes = b"".join(self._parts), [], 0
        return data


@dataclass(frozen=True, slots=True)
class Span:
    """A range of steps, both ends included."""

    first: int = 0
    last: int = LARGEST_STEP

    @property
    def is_all(self) -> bool:
        return self == Span()


class SpanForm(FilterForm):
    """The steps of a file."""

    first_step = forms.IntegerField(
        required=False, min_value=0, max_value=LARGEST_STEP, label="From step"
    )
    last_step = forms.IntegerField(
        required=False, min_value=0, max_value=LARGEST_STEP, label="To step"
    )

    @property
    def span(self) -> Span:
        last = self.value("last_step")
        return Span(
            self.value("first_step") or 0, LARGEST_STEP if last is None else last
        )

    @property
    def query(self) -> str:
        """The query string of the files' addresses; "?…" or empty."""
        values = {name: self.value(name) for name in self.fields}
        query = urlencode({n: v for n, v in values.items() if v is not None})
        return f"?{query}" if query else ""
