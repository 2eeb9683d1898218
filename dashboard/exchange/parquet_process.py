"""The child in which Parquet files are read: see project/subprocesses.py.

One for all files of an import, which may be a thousand: it takes most of a second to
begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dashboard.datasets.parsing.parquet import read_batches
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.parsing.streams import Source
from dashboard.project.subprocesses import serve

Rows = list[tuple[int, dict[str, Any]] | Refusal]


def _answer(files: Sequence[tuple[Path, str]]) -> Iterator[tuple[int, Rows]]:
    for number, (path, packing) in enumerate(files):
        yield number, []
        for batch in read_batches(Source(path, "parquet", packing)):
            yield (
                number,
                [
                    (item.line, item.values) if isinstance(item, Record) else item
                    for item in batch
                ],
            )


if __name__ == "__main__":
    serve(_answer)
