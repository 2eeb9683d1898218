"""Parquet, a few rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_ROW_BYTES, MAX_ROWS
from dashboard.datasets.parsing.parquet_sizes import (
    RowGroup,
    count_nested,
    look_at_groups,
    plain_field,
)
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.parsing.refusals import Refusal, quote
from dashboard.datasets.parsing.source import Source, refuse_size
from dashboard.project.subprocesses import LOOK_SECONDS, BrokeOff, ask

PROCESS = "dashboard.datasets.parsing.parquet_process"
# Few, because one long text in a dictionary can stand in every row of a batch; fewer
# where the dictionaries are so large that these rows could hold more than this.
BATCH_ROWS = 16
BATCH_BYTES = 256 * 2**20
BUFFER_BYTES = 2**20
COPIED_BYTES = 2**20


def read_parquet(source: Source) -> Iterator[Parsed]:
    """In a process of its own, which a damaged file may end."""
    seconds = None if source.most is None else LOOK_SECONDS
    answers = ask(PROCESS, source.path, source.packing, seconds=seconds)
    try:
        with closing(answers):
            for num_bytes_read, batch in answers:
                source.num_bytes_read = num_bytes_read
                for item in batch:
                    yield Record(*item) if isinstance(item, tuple) else item
    except BrokeOff as error:
        yield _unreadable(f"Reading it broke off: {error}.")


def read_batches(source: Source) -> Iterator[list[Parsed]]:
    """A few rows at a time, here."""
    if not source.packing:
        yield from _read(source.path, source)
        return
    # Its columns lie apart, so it cannot be read as a stream.
    with TemporaryFile(dir=source.path.parent) as unpacked:
        with source.open() as stream:
            shutil.copyfileobj(stream, unpacked, COPIED_BYTES)
        unpacked.seek(0)
        yield from _read(unpacked, source)


def _read(file: Path | IO[bytes], source: Source) -> Iterator[list[Parsed]]:
    try:
        # Buffered, so a row group of any size is read a page at a time.
        with (
            _opened(file) as native,
            pq.ParquetFile(native, buffer_size=BUFFER_BYTES) as table,
        ):
            groups = look_at_groups(native, table)
            if refusal := _refuse_file(source, table, groups):
                yield [refusal]
            else:
                yield from _records(source, native, table, groups)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield [_unreadable(str(error))]


def _unreadable(why: str) -> Refusal:
    return Refusal(
        value=quote(why),
        problem="The file cannot be read as Parquet.",
        remedy="Write it again, for example with pandas.DataFrame.to_parquet.",
        ends_file=True,
    )


def _opened(file: Path | IO[bytes]) -> pa.NativeFile:
    return pa.OSFile(str(file)) if isinstance(file, Path) else pa.PythonFile(file, "r")


def _records(
    source: Source, file: pa.NativeFile, table: pq.ParquetFile, groups: list[RowGroup]
) -> Iterator[list[Parsed]]:
    line = num_bytes = 0
    limit = source.max_unpacked
    for batch in _batches(file, table, groups, limit):
        if isinstance(batch, Refusal):
            yield [replace(batch, line=line + 1)]
            return
        num_bytes += batch.nbytes
        if num_bytes > limit:
            yield [replace(refuse_size(num_bytes), line=line + 1)]
            return
        for rows in _rows(batch, line):
            line += len(rows)
            _note_progress(source, line, table.metadata.num_rows)
            yield rows


def _batches(
    file: pa.NativeFile, table: pq.ParquetFile, groups: list[RowGroup], limit: int
) -> Iterator[pa.RecordBatch | Refusal]:
    """Group by group, each looked through first for what its lists repeat."""
    schema = table.schema_arrow
    plain = pa.schema([plain_field(field) for field in schema])
    is_plain = plain.types == schema.types
    for number, group in enumerate(groups):
        nested = 0
        for num_bytes in count_nested(file, number, group.nested):
            nested += num_bytes
            if nested > limit:
                yield refuse_size(nested)
                return
        num_rows = BATCH_BYTES // max(1, group.num_dictionary_bytes)
        for batch in table.iter_batches(
            batch_size=max(1, min(BATCH_ROWS, num_rows)),
            row_groups=[number],
            use_threads=False,
        ):
            # Otherwise a dictionary would count once, whatever its rows make of it.
            yield batch if is_plain else batch.cast(plain)


def _rows(batch: pa.RecordBatch, line: int) -> Iterator[list[Parsed]]:
    if batch.nbytes > MAX_ROW_BYTES:
        if batch.num_rows == 1:
            yield [_refuse_row(batch, line + 1)]
            return
        for i in range(batch.num_rows):
            yield from _rows(batch.slice(i, 1), line + i)
        return
    try:
        rows = batch.to_pylist()
    except Exception:  # noqa: BLE001  # a value's type decides what it raises
        rows = None
    if rows is not None:
        yield [Record(line + 1 + i, row) for i, row in enumerate(rows)]
        return
    yield [_row(batch, i, line + 1 + i) for i in range(batch.num_rows)]


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


def _refuse_row(row: pa.RecordBatch, line: int) -> Refusal:
    longest = max(range(row.num_columns), key=lambda i: row.column(i).nbytes)
    return Refusal(
        line=line,
        column=row.schema.names[longest],
        value=f"{row.nbytes:,} bytes",
        problem=f"A row may unpack to {MAX_ROW_BYTES:,} bytes at most.",
        remedy="Shorten its texts, or leave the column out.",
    )


def _note_progress(source: Source, line: int, num_rows: int) -> None:
    # Pages of many columns lie apart: rows say better how far the reading is.
    source.num_bytes_read = source.path.stat().st_size * line // num_rows


def _refuse_file(
    source: Source, table: pq.ParquetFile, groups: list[RowGroup]
) -> Refusal | None:
    # Before a page is unpacked: what the file says of itself.
    meta = table.metadata
    if meta.num_rows > MAX_ROWS:
        return Refusal(
            value=f"{meta.num_rows:,} rows",
            problem=f"A file may hold {MAX_ROWS:,} rows at most.",
            remedy="Split it into several datasets.",
            ends_file=True,
        )
    num_bytes = sum(group.num_bytes for group in groups)
    if num_bytes > source.max_unpacked:
        return refuse_size(num_bytes)
    num_bytes = max((group.num_dictionary_bytes for group in groups), default=0)
    if num_bytes > BATCH_BYTES:
        return Refusal(
            value=f"{num_bytes:,} bytes",
            problem="The dictionaries of a row group, which hold values that stand in "
            f"several rows, may unpack to {BATCH_BYTES:,} bytes together.",
            remedy="Write long texts without dictionaries, for example with "
            "use_dictionary=False in pandas.DataFrame.to_parquet.",
            ends_file=True,
        )
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
