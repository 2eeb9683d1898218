"""Parquet, a few rows at a time, in a child process.

The decompressed size is checked before reading. A dictionary stores each value once and
rows refer to it, so a file of a kilobyte can expand to a terabyte: the size of a page
does not bound the size of its rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_ROW_BYTES, MAX_ROWS
from dashboard.datasets.parsing.records import (
    OddValue,
    Parsed,
    Record,
    Refusal,
    quote,
    refuse_names,
)
from dashboard.datasets.parsing.streams import Source, refuse_size
from dashboard.project.subprocesses import LOOK_SECONDS, ChildFailed, call

PROCESS = "dashboard.datasets.parsing.parquet_process"
# Few, because a long text in a dictionary can repeat in every row of a batch; fewer if
# the dictionaries are so large that the rows could exceed BATCH_BYTES.
BATCH_ROWS = 16
BATCH_BYTES = 256 * 2**20
BUFFER_BYTES = 2**20
# Bytes of a value in memory, at least; of a text that is where it ends.
_WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_WIDTHS |= {"BYTE_ARRAY": 4}
_HEADER_BYTES = 32  # more than the two numbers of it that count
_DICTIONARY_PAGE = 2
_COUNTED_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """Sizes known before a page is read."""

    num_bytes: int  # at least so many, unpacked
    num_dictionary_bytes: int  # of all dictionaries: what one flat row can hold
    nested: tuple[str, ...]  # columns of which one row can hold any number of texts


def read_parquet(source: Source) -> Iterator[Parsed]:
    seconds = None if source.most is None else LOOK_SECONDS
    batches = read_parquet_files([(source.path, source.packing)], seconds=seconds)
    try:
        with closing(batches):
            for _, num_bytes_read, batch in batches:
                source.num_bytes_read = num_bytes_read
                yield from batch
    except ChildFailed as error:
        yield _unreadable(f"Reading failed: {error}.")


def read_parquet_files(
    files: Sequence[tuple[Path, str]], *, seconds: float | None = None
) -> Generator[tuple[int, int, list[Parsed]], None, None]:
    """Rows of files and their packings, each with the file's index and the bytes read.

    One process reads all files, as it takes most of a second to start. The first batch
    of each file is empty. ChildFailed if a damaged file ends the process.
    """
    with closing(call(PROCESS, "read", files, seconds=seconds)) as batches:
        for number, num_bytes_read, batch in batches:
            yield (
                number,
                num_bytes_read,
                [Record(*item) if isinstance(item, tuple) else item for item in batch],
            )


def read_batches(source: Source) -> Iterator[list[Parsed]]:
    """Read a few rows at a time, in this process."""
    if not source.packing:
        yield from _read(source.path, source)
        return
    # Parquet needs random access, so it cannot be decompressed as a stream.
    with TemporaryFile(dir=source.path.parent) as unpacked:
        with source.open() as stream:
            shutil.copyfileobj(stream, unpacked, BUFFER_BYTES)
        unpacked.seek(0)
        yield from _read(unpacked, source)


def _read(file: Path | IO[bytes], source: Source) -> Iterator[list[Parsed]]:
    try:
        native = (
            pa.OSFile(str(file)) if isinstance(file, Path) else pa.PythonFile(file, "r")
        )
        # Buffered, so a row group of any size is read a page at a time.
        with native, pq.ParquetFile(native, buffer_size=BUFFER_BYTES) as table:
            groups = [
                _describe_group(native, table, i) for i in range(table.num_row_groups)
            ]
            if refusal := _refuse_file(source, table, groups):
                yield [refusal]
            else:
                yield from _records(source, native, table, groups)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        yield [_unreadable(str(error))]


def _unreadable(why: str) -> Refusal:
    return Refusal(
        value=quote(why),
        problem="Cohort cannot read the file as Parquet.",
        remedy="Write it again, for example with pandas.DataFrame.to_parquet.",
        ends_file=True,
    )


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
            # Columns are stored separately, so estimate the progress from rows.
            source.num_bytes_read = (
                source.path.stat().st_size * line // table.metadata.num_rows
            )
            yield rows


def _batches(
    file: pa.NativeFile, table: pq.ParquetFile, groups: list[RowGroup], limit: int
) -> Iterator[pa.RecordBatch | Refusal]:
    """Group by group, after counting the bytes of repeated values in lists."""
    schema = table.schema_arrow
    # A nanosecond more than Python's dates have is dropped.
    plain = pa.schema([_plain_field(field) for field in schema])
    is_plain = plain.types == schema.types
    for number, group in enumerate(groups):
        nested = 0
        for num_bytes in _count_nested(file, number, group.nested):
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
            # Otherwise a dictionary value would count once for all its rows.
            yield batch if is_plain else batch.cast(plain, safe=False)


def _rows(batch: pa.RecordBatch, line: int) -> Iterator[list[Parsed]]:
    if batch.nbytes > MAX_ROW_BYTES:
        if batch.num_rows == 1:
            longest = max(
                range(batch.num_columns), key=lambda i: batch.column(i).nbytes
            )
            yield [
                Refusal(
                    line=line + 1,
                    column=batch.schema.names[longest],
                    value=f"{batch.nbytes:,} bytes",
                    problem="The row decompresses to more than "
                    f"{MAX_ROW_BYTES:,} bytes.",
                    remedy="Shorten the row, or remove the column.",
                )
            ]
            return
        for i in range(batch.num_rows):
            yield from _rows(batch.slice(i, 1), line + i)
        return
    try:
        rows = batch.to_pylist()
    except Exception:  # noqa: BLE001  # a value's type decides what it raises
        rows = None
    if rows is None:
        rows = [_row(batch, i) for i in range(batch.num_rows)]
    for field in batch.schema:
        if convert := _to_json(field.type):
            for row in rows:
                row[field.name] = convert(row[field.name])
    yield [Record(line + 1 + i, row) for i, row in enumerate(rows)]


def _row(batch: pa.RecordBatch, index: int) -> dict[str, Any]:
    """Read a row value by value, since Python cannot represent one of them."""
    values: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[index].as_py()
        except Exception as error:  # noqa: BLE001  # as above
            values[name] = OddValue(str(column.type), str(error))
    return values


def _to_json(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function from values of this type to values that JSON has; None if
    Python's are such already, or none is.
    """
    convert = _leaf_to_json(kind)
    if pa.types.is_struct(kind):
        fields = {field.name: _to_json(field.type) for field in kind}
        if inner := {name: to_json for name, to_json in fields.items() if to_json}:
            convert = partial(_convert_fields, inner)
    elif pa.types.is_map(kind):
        convert = partial(_convert_map, _to_json(kind.item_type))
    elif (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    ) and (of_items := _to_json(kind.value_type)):
        convert = partial(_convert_items, of_items)
    return convert and partial(_convert_known, convert)


def _leaf_to_json(kind: pa.DataType) -> Callable[[Any], Any] | None:
    types = pa.types
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return methodcaller("isoformat")
    if types.is_duration(kind):
        return methodcaller("total_seconds")
    if isinstance(kind, pa.UuidType):
        return str
    if types.is_decimal(kind):
        return "{:f}".format
    if types.is_float32(kind) or types.is_float16(kind):
        # The shortest number that the column's width tells apart: 0.1.
        width = kind.to_pandas_dtype()
        return lambda value: float(str(width(value)))
    return None


def _convert_known(convert: Callable[[Any], Any], value: Any) -> Any:
    return value if value is None or isinstance(value, OddValue) else convert(value)


def _convert_fields(by_name: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    return value | {name: convert(value[name]) for name, convert in by_name.items()}


def _convert_map(convert: Callable[[Any], Any] | None, pairs: Any) -> Any:
    return {str(key): convert(value) if convert else value for key, value in pairs}


def _convert_items(convert: Callable[[Any], Any], values: Any) -> Any:
    return [convert(value) for value in values]


def _refuse_file(
    source: Source, table: pq.ParquetFile, groups: list[RowGroup]
) -> Refusal | None:
    # From the metadata, before a page is decompressed.
    meta = table.metadata
    if meta.num_rows > MAX_ROWS:
        return Refusal(
            value=f"{meta.num_rows:,} rows",
            problem=f"A file can have at most {MAX_ROWS:,} rows.",
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
            problem="The dictionaries of a row group decompress to more than "
            f"{BATCH_BYTES:,} bytes.",
            remedy="Write the file without dictionary encoding, for example with "
            "use_dictionary=False in pandas.DataFrame.to_parquet.",
            ends_file=True,
        )
    names = table.schema_arrow.names
    if len(set(names)) < len(names):
        return Refusal(
            value=quote(sorted(names)),
            problem="Two columns have the same name.",
            remedy="Rename one of them.",
            ends_file=True,
        )
    refusal = refuse_names(1, names)
    return replace(refusal, ends_file=True) if refusal else None


def _count_nested(
    file: pa.NativeFile, group: int, columns: tuple[str, ...]
) -> Iterator[int]:
    """Bytes of the texts in these columns, while they still are in dictionaries."""
    if not columns:
        return
    with pq.ParquetFile(file, read_dictionary=list(columns)) as table:
        batches = table.iter_batches(
            batch_size=_COUNTED_ROWS,
            row_groups=[group],
            columns=list(columns),
            use_threads=False,
        )
        for batch in batches:
            yield sum(_text_bytes(column) for column in batch.columns)


def _plain_field(field: pa.Field) -> pa.Field:
    """Return the field without dictionary encoding."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def _describe_group(
    file: pa.NativeFile, table: pq.ParquetFile, number: int
) -> RowGroup:
    meta = table.metadata.row_group(number)
    num_values = num_dictionary = 0
    nested = []
    for i in range(meta.num_columns):
        column = meta.column(i)
        num_values += column.num_values * _WIDTHS.get(column.physical_type, 0)
        if column.physical_type != "BYTE_ARRAY" or not column.num_values:
            continue
        if table.schema.column(i).max_repetition_level:
            nested.append(column.path_in_schema)
        else:
            # Of the page that the column begins with, if that is a dictionary,
            # unpacked. Its header is Thrift's compact protocol: first the page's
            # kind, then its size.
            start = column.data_page_offset
            if column.has_dictionary_page:
                start = min(start, column.dictionary_page_offset or start)
            file.seek(start)
            header = file.read(_HEADER_BYTES)
            kind, at = _number(header, 0)
            size, _ = _number(header, at)
            num_dictionary += size if kind == _DICTIONARY_PAGE else 0
    return RowGroup(
        num_bytes=max(num_values, meta.total_byte_size),
        num_dictionary_bytes=num_dictionary,
        nested=tuple(nested),
    )


def _number(header: bytes, at: int) -> tuple[int, int]:
    """Return the 32-bit field there, and where the next one begins."""
    if header[at : at + 1] != b"\x15":
        raise ValueError("A page has no header.")
    value = shift = 0
    for place in range(at + 1, len(header)):
        value |= (header[place] & 0x7F) << shift
        shift += 7
        if header[place] < 0x80:
            return value >> 1, place + 1
    raise ValueError("A page header is truncated.")


def _text_bytes(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(array.indices.drop_null())).as_py() or 0
    if isinstance(array, pa.StructArray):
        return sum(_text_bytes(part) for part in array.flatten())
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.MapArray):
        return _text_bytes(array.flatten())
    return int(array.nbytes)
