"""What a Parquet file unpacks to, told before it is read.

A dictionary holds each value once and rows point to it, so a file of a kilobyte can
stand for a terabyte: a page's own size says nothing of what its rows make of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Bytes of a value in memory, at least; of a text that is where it ends.
_WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_WIDTHS |= {"BYTE_ARRAY": 4}
_HEADER_BYTES = 32  # more than the two numbers of it that count
_DICTIONARY_PAGE = 2
_COUNTED_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """What of it is known before a page is read."""

    num_bytes: int  # at least so many, unpacked
    num_dictionary_bytes: int  # of all dictionaries: what one flat row can hold
    nested: tuple[str, ...]  # columns of which one row can hold any number of texts


def look_at_groups(file: pa.NativeFile, table: pq.ParquetFile) -> list[RowGroup]:
    return [_look(file, table, i) for i in range(table.metadata.num_row_groups)]


def count_nested(
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


def plain_field(field: pa.Field) -> pa.Field:
    """With each value in its place, where the field keeps some in a dictionary."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(plain_field(kind.value_field))
    return kind


def _look(file: pa.NativeFile, table: pq.ParquetFile, number: int) -> RowGroup:
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
            num_dictionary += _dictionary_bytes(file, column)
    return RowGroup(
        num_bytes=max(num_values, meta.total_byte_size),
        num_dictionary_bytes=num_dictionary,
        nested=tuple(nested),
    )


def _dictionary_bytes(file: pa.NativeFile, column: pq.ColumnChunkMetaData) -> int:
    """Of the page that the column begins with, if that is a dictionary, unpacked.

    Its header is Thrift's compact protocol: first the page's kind, then its size.
    """
    start = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset or start)
    file.seek(start)
    header = file.read(_HEADER_BYTES)
    kind, at = _number(header, 0)
    size, _ = _number(header, at)
    return size if kind == _DICTIONARY_PAGE else 0


def _number(header: bytes, at: int) -> tuple[int, int]:
    """The 32-bit field there, and where the next one begins."""
    if header[at : at + 1] != b"\x15":
        raise ValueError("A page of it has no header.")
    value = shift = 0
    for place in range(at + 1, len(header)):
        value |= (header[place] & 0x7F) << shift
        shift += 7
        if header[place] < 0x80:
            return value >> 1, place + 1
    raise ValueError("A page's header has no end.")


def _text_bytes(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(array.indices.drop_null())).as_py() or 0
    if isinstance(array, pa.StructArray):
        return sum(_text_bytes(part) for part in array.flatten())
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.MapArray):
        return _text_bytes(array.flatten())
    return int(array.nbytes)
