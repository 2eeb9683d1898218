"""The child in which a Parquet file is read: see project/subprocesses.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from dashboard.project.subprocesses import serve


def _answer(
    path: Path, packing: str
) -> Iterator[tuple[int, list[tuple[int, dict[str, Any]] | Refusal]]]:
    source = Source(path, "parquet", packing)
    for batch in read_batches(source):
        # Records as tuples: pickled as they are, reading takes half as long again.
        yield (
            source.num_bytes_read,
            [
                (item.line, item.values) if isinstance(item, Record) else item
                for item in batch
            ],
        )


if __name__ == "__main__":
    serve(_answer)
