"""Which reader a file needs, and reading it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace

from dashboard.datasets.parsing.csv_file import read_csv, read_tsv
from dashboard.datasets.parsing.json_file import read_json_file
from dashboard.datasets.parsing.jsonl import read_jsonl
from dashboard.datasets.parsing.parquet import read_parquet
from dashboard.datasets.parsing.records import Parsed, bounded
from dashboard.datasets.parsing.source import Source, Unreadable

READERS = {
    "jsonl": read_jsonl,
    "json": read_json_file,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
}


def read_records(source: Source) -> Generator[Parsed, None, None]:
    """Every row as a record or a refusal; at least one of either."""
    with closing(_read(source)) as parsed:
        yield from bounded(parsed)


def _read(source: Source) -> Generator[Parsed, None, None]:
    try:
        yield from READERS[source.format](source)
    except Unreadable as error:
        # It cannot be unpacked from its first byte on, or not as a whole.
        yield replace(error.refusal, ends_file=True)
