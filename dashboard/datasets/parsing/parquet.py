"""Parquet, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import (
    MAX_ROWS,
    MAX_UNPACKED_BYTES,
    MAX_UNPACKED_RATIO,
    UNPACKED_FLOOR_BYTES,
)
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.refusals import Refusal, quote

# Few, because one long text in a dictionary can stand in every row of a batch.
BATCH_ROWS = 16


def read_parquet(path: Path) -> Iterator[Parsed]:
    try:
        with pq.ParquetFile(path) as file:
            if refusal := _refuse_file(path, file):
                yield refusal
            else:
                yield from _records(path, file)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Refusal(
            value=quote(str(error)),
            problem="The file cannot be read as Parquet.",
            remedy="Write it again, for example with pandas.DataFrame.to_parquet.",
        )


def _records(path: Path, file: pq.ParquetFile) -> Iterator[Parsed]:
    line = num_bytes = 0
    limit = _max_unpacked(path)
    for batch in file.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
        num_bytes += batch.nbytes
        if num_bytes > limit:
            yield _refuse_size(num_bytes)
            return
        for values in batch.to_pylist():
            line += 1
            yield Record(line, values)


def _refuse_file(path: Path, file: pq.ParquetFile) -> Refusal | None:
    # Before a page is unpacked: what the file says of itself.
    meta = file.metadata
    if meta.num_rows > MAX_ROWS:
        return Refusal(
            value=f"{meta.num_rows:,} rows",
            problem=f"A file may hold {MAX_ROWS:,} rows at most.",
            remedy="Split it into several datasets.",
        )
    groups = range(meta.num_row_groups)
    num_bytes = sum(meta.row_group(i).total_byte_size for i in groups)
    if num_bytes > _max_unpacked(path):
        return _refuse_size(num_bytes)
    return _refuse_columns(file.schema_arrow.names)


def _refuse_columns(names: list[str]) -> Refusal | None:
    if len(set(names)) < len(names):
        return Refusal(
            value=quote(sorted(names)),
            problem="Two columns have the same name.",
            remedy="Rename one of them.",
        )
    return refuse_names(1, names)


def _max_unpacked(path: Path) -> int:
    by_ratio = path.stat().st_size * MAX_UNPACKED_RATIO
    return min(MAX_UNPACKED_BYTES, max(UNPACKED_FLOOR_BYTES, by_ratio))


def _refuse_size(num_bytes: int) -> Refusal:
    return Refusal(
        value=f"{num_bytes:,} bytes",
        problem=f"The file unpacks to more than {MAX_UNPACKED_RATIO} times its size, "
        f"or more than {MAX_UNPACKED_BYTES:,} bytes.",
        remedy="Keep fewer rows or columns, or upload it as JSONL.",
    )
