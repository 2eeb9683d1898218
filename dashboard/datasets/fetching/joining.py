"""Several files of one split, as one file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.fetching.request import NotFetched
from dashboard.datasets.limits import MAX_ROWS, MAX_UNPACKED_BYTES

# Few are read at once, as one long text in a dictionary can stand in each of them;
# many make a group, as each group costs its own header.
BATCH_ROWS = 16
GROUP_ROWS, GROUP_BYTES = 4_096, 16 * 2**20
BUFFER_BYTES = 2**20


def join(parts: list[Path], whole: Path, *, on_wait: Callable[[], None]) -> None:
    """The parts go, once they are in the whole. Raises NotFetched."""
    if len(parts) == 1:
        parts[0].replace(whole)
        return
    draft = whole.with_name(f"{whole.name}.joined")
    try:
        is_parquet = _begins(parts[0]) == b"PAR1"
        (_join_parquet if is_parquet else _join_lines)(parts, draft, on_wait)
        draft.replace(whole)
    finally:
        draft.unlink(missing_ok=True)
    for part in parts:
        part.unlink(missing_ok=True)


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _join_lines(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    with draft.open("wb") as joined:
        for part in parts:
            on_wait()
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, BUFFER_BYTES)
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        joined.write(b"\n")


def _join_parquet(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    try:
        schema = _common_schema(parts)
        with pq.ParquetWriter(draft, schema) as writer:
            for rows in _groups(parts):
                on_wait()
                writer.write_table(rows.select(schema.names).cast(schema))
    except NotFetched:
        raise
    except (pa.ArrowException, ValueError, LookupError):
        raise NotFetched(
            "The files of this split cannot be joined to one Parquet file: one of them "
            "is damaged, or has other columns. Take its files one by one."
        ) from None


def _common_schema(parts: list[Path]) -> pa.Schema:
    schema, num_rows, num_bytes = None, 0, 0
    for part in parts:
        meta = pq.read_metadata(part)
        found = meta.schema.to_arrow_schema().remove_metadata()
        schema = schema or found
        if set(found.names) != set(schema.names):
            raise ValueError(found.names)
        num_rows += meta.num_rows
        num_bytes += sum(
            meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)
        )
    if num_rows > MAX_ROWS or num_bytes > MAX_UNPACKED_BYTES:
        raise NotFetched(
            f"The files of this split hold {num_rows:,} rows and unpack to "
            f"{num_bytes:,} bytes; {MAX_ROWS:,} rows and {MAX_UNPACKED_BYTES:,} bytes "
            "are allowed. Take some of its files."
        )
    return schema


def _groups(parts: list[Path]) -> Iterator[pa.Table]:
    num_bytes = 0
    for part in parts:
        waiting: list[pa.RecordBatch] = []
        with pq.ParquetFile(part, buffer_size=BUFFER_BYTES) as table:
            for batch in table.iter_batches(BATCH_ROWS, use_threads=False):
                waiting.append(batch)
                num_bytes += batch.nbytes
                if num_bytes > MAX_UNPACKED_BYTES:
                    raise NotFetched(
                        "The files of this split unpack to more than "
                        f"{MAX_UNPACKED_BYTES:,} bytes. Take some of its files."
                    )
                if _is_group(waiting):
                    yield pa.Table.from_batches(waiting)
                    waiting = []
            if waiting:
                yield pa.Table.from_batches(waiting)


def _is_group(waiting: list[pa.RecordBatch]) -> bool:
    num_bytes = sum(batch.nbytes for batch in waiting)
    return len(waiting) * BATCH_ROWS >= GROUP_ROWS or num_bytes >= GROUP_BYTES
