"""Parquet, a few rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_ROWS
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.parsing.source import Source, refuse_size
from dashboard.datasets.refusals import Refusal, quote

# Few, because one long text in a dictionary can stand in every row of a batch.
BATCH_ROWS = 16
BUFFER_BYTES = 2**20
COPIED_BYTES = 2**20


def read_parquet(source: Source) -> Iterator[Parsed]:
    if not source.packing:
        yield from _read(source.path, source)
        return
    # Its columns lie apart, so it cannot be read as a stream.
    with TemporaryFile(dir=source.path.parent) as unpacked:
        with source.open() as stream:
            shutil.copyfileobj(stream, unpacked, COPIED_BYTES)
        unpacked.seek(0)
        yield from _read(unpacked, source)


def _read(file: Path | IO[bytes], source: Source) -> Iterator[Parsed]:
    try:
        # Buffered, so a row group of any size is read a page at a time.
        with pq.ParquetFile(file, buffer_size=BUFFER_BYTES) as table:
            if refusal := _refuse_file(source, table):
                yield refusal
            else:
                yield from _records(source, table)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield Refusal(
            value=quote(str(error)),
            problem="The file cannot be read as Parquet.",
            remedy="Write it again, for example with pandas.DataFrame.to_parquet.",
            ends_file=True,
        )


def _records(source: Source, table: pq.ParquetFile) -> Iterator[Parsed]:
    line = num_bytes = 0
    limit = source.max_unpacked
    for batch in table.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
        num_bytes += batch.nbytes
        if num_bytes > limit:
            yield replace(refuse_size(num_bytes), line=line + 1)
            return
        for item in _rows(batch, line):
            line += 1
            _note_progress(source, line, table.metadata.num_rows)
            yield item


def _rows(batch: pa.RecordBatch, line: int) -> Iterator[Parsed]:
    try:
        rows = batch.to_pylist()
    except Exception:  # noqa: BLE001  # a value's type decides what it raises
        rows = None
    if rows is not None:
        yield from (Record(line + 1 + i, row) for i, row in enumerate(rows))
        return
    yield from (_row(batch, i, line + 1 + i) for i in range(batch.num_rows))


def _row(batch: pa.RecordBatch, index: int, line: int) -> Parsed:
    """A row value by value, to name the one that Python has no form for."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[index].as_py()
        except Exception as error:  # noqa: BLE001  # as above
            return Refusal(
                line=line,
                column=name,
                value=quote(str(error)),
                problem=f"The value, of type {column.type}, cannot be read.",
                remedy="Write the column as text or numbers, or leave it out.",
            )
    return Record(line, values)


def _note_progress(source: Source, line: int, num_rows: int) -> None:
    # Pages of many columns lie apart: rows say better how far the reading is.
    source.num_bytes_read = source.path.stat().st_size * line // num_rows


def _refuse_file(source: Source, table: pq.ParquetFile) -> Refusal | None:
    # Before a page is unpacked: what the file says of itself.
    meta = table.metadata
    if meta.num_rows > MAX_ROWS:
        return Refusal(
            value=f"{meta.num_rows:,} rows",
            problem=f"A file may hold {MAX_ROWS:,} rows at most.",
            remedy="Split it into several datasets.",
            ends_file=True,
        )
    groups = range(meta.num_row_groups)
    num_bytes = sum(meta.row_group(i).total_byte_size for i in groups)
    if num_bytes > source.max_unpacked:
        return refuse_size(num_bytes)
    return _refuse_columns(table.schema_arrow.names)


def _refuse_columns(names: list[str]) -> Refusal | None:
    if len(set(names)) < len(names):
        return Refusal(
            value=quote(sorted(names)),
            problem="Two columns have the same name.",
            remedy="Rename one of them.",
            ends_file=True,
        )
    refusal = refuse_names(1, names)
    return replace(refusal, ends_file=True) if refusal else None
