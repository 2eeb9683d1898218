"""Which reader a file needs, and reading it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dashboard.datasets.limits import AT_ONCE_BYTES, AT_ONCE_ROWS
from dashboard.datasets.parsing.csv_file import read_csv, read_tsv
from dashboard.datasets.parsing.json_file import read_json_file
from dashboard.datasets.parsing.jsonl import read_jsonl
from dashboard.datasets.parsing.parquet import read_parquet
from dashboard.datasets.parsing.records import Parsed, Record, bounded
from dashboard.datasets.parsing.refusals import num_chars_of
from dashboard.datasets.parsing.source import Source, Unreadable

READERS = {
    "jsonl": read_jsonl,
    "json": read_json_file,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
}


def is_small(path: Path, file_format: str, packing: str = "") -> bool:
    """Whether a page may wait for its rows. It is read, but not far beyond the bound:
    what a file takes when it is packed says nothing of what it holds."""
    source = Source(path, file_format, packing, most=AT_ONCE_BYTES)
    if path.stat().st_size > AT_ONCE_BYTES:
        return False
    num_chars = 0
    for num_rows, item in enumerate(read_records(source), 1):
        if isinstance(item, Record):
            num_chars += num_chars_of(item.values)
        if source.is_cut or num_rows > AT_ONCE_ROWS or num_chars > AT_ONCE_BYTES:
            return False
    return True


def read_records(source: Source) -> Iterator[Parsed]:
    """Every row as a record or a refusal; at least one of either."""
    return bounded(_read(source))


def _read(source: Source) -> Iterator[Parsed]:
    try:
        yield from READERS[source.format](source)
    except Unreadable as error:
        # It cannot be unpacked from its first byte on, or not as a whole.
        yield replace(error.refusal, ends_file=True)
