"""The child in which Parquet files are read and joined: see project/subprocesses.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.datasets.limits import MAX_ROWS
from dashboard.datasets.parsing.parquet import BATCH_ROWS, BUFFER_BYTES, read_batches
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from dashboard.project.subprocesses import serve

# Large ones when files are joined, as each group costs its own header.
GROUP_ROWS, GROUP_BYTES = 4_096, 16 * 2**20


def answer(task: str, *question: Any) -> Iterator[Any]:
    return read(*question) if task == "read" else join(*question)


def read(
    files: Sequence[tuple[Path, str]],
) -> Iterator[tuple[int, int, list[tuple[int, dict[str, Any]] | Refusal]]]:
    """See `read_parquet_files`."""
    for number, (path, packing) in enumerate(files):
        source = Source(path, "parquet", packing)
        yield number, 0, []
        for batch in read_batches(source):
            # Records as tuples: pickled as they are, reading takes half as long again.
            rows = [
                (item.line, item.values) if isinstance(item, Record) else item
                for item in batch
            ]
            yield number, source.num_bytes_read, rows


class _Refused(Exception):
    """The text is for the user."""


def join(parts: list[Path], whole: Path, max_bytes: int) -> Iterator[str]:
    """Yield nothing for each group that is written; last, if there is one, a
    problem.
    """
    try:
        schema = _common_schema(parts, max_bytes)
        with pq.ParquetWriter(whole, schema) as writer:
            for rows in _groups(parts, max_bytes):
                writer.write_table(rows.select(schema.names).cast(schema))
                yield ""
    except _Refused as error:
        yield str(error)
    except (pa.ArrowException, ValueError, LookupError):
        yield (
            "Cannot join the files of this split into one Parquet file: one is damaged "
            "or has different columns. Import its files one at a time."
        )


def _common_schema(parts: list[Path], max_bytes: int) -> pa.Schema:
    schema, num_rows, num_bytes = None, 0, 0
    for part in parts:
        meta = pq.read_metadata(part)
        part_schema = meta.schema.to_arrow_schema().remove_metadata()
        schema = schema or part_schema
        if set(part_schema.names) != set(schema.names):
            raise ValueError(part_schema.names)
        num_rows += meta.num_rows
        num_bytes += sum(
            meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)
        )
    if num_rows > MAX_ROWS or num_bytes > max_bytes:
        raise _Refused(
            f"The files of this split have {num_rows:,} rows and decompress to "
            f"{num_bytes:,} bytes; the limit is {MAX_ROWS:,} rows and {max_bytes:,} "
            "bytes. Import its files one at a time."
        )
    return schema


def _groups(parts: list[Path], max_bytes: int) -> Iterator[pa.Table]:
    num_bytes = 0
    for part in parts:
        waiting: list[pa.RecordBatch] = []
        with pq.ParquetFile(part, buffer_size=BUFFER_BYTES) as table:
            for batch in table.iter_batches(BATCH_ROWS, use_threads=False):
                waiting.append(batch)
                num_bytes += batch.nbytes
                if num_bytes > max_bytes:
                    raise _Refused(
                        "The files of this split decompress to more than "
                        f"{max_bytes:,} bytes. Import its files one at a time."
                    )
                if (
                    len(waiting) * BATCH_ROWS >= GROUP_ROWS
                    or sum(batch.nbytes for batch in waiting) >= GROUP_BYTES
                ):
                    yield pa.Table.from_batches(waiting)
                    waiting = []
            if waiting:
                yield pa.Table.from_batches(waiting)


if __name__ == "__main__":
    serve(answer)
