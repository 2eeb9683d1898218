"""Which reader a file needs, by its first bytes and its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from dashboard.datasets.parsing.csv_file import read_csv
from dashboard.datasets.parsing.jsonl import read_jsonl
from dashboard.datasets.parsing.parquet import read_parquet
from dashboard.datasets.parsing.records import Parsed, bounded

READERS = {"jsonl": read_jsonl, "csv": read_csv, "parquet": read_parquet}
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PACKED = [
    (b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (b"\x1f\x8b", "packed with gzip"),
    (b"BZh", "packed with bzip2"),
    (b"\xfd7zXZ", "packed with xz"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"\x80\x04\x95", "a pickle"),
]


def detect_format(filename: str, start: bytes) -> str:
    """jsonl, csv or parquet; ValueError for anything else."""
    if not start:
        raise ValueError(f"{filename} is empty. Choose a file that holds rows.")
    if start.startswith(b"PAR1"):
        return "parquet"
    for magic, kind in PACKED:
        if start.startswith(magic):
            raise ValueError(
                f"{filename} is {kind}. Unpack it, or save it as JSONL, CSV or Parquet."
            )
    suffix = PurePath(filename).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{filename} ends in {suffix or 'nothing'}. Choose a file that ends in "
            ".jsonl, .csv or .parquet."
        )
    return SUFFIXES[suffix]


def read_records(file_format: str, path: Path) -> Iterator[Parsed]:
    return bounded(READERS[file_format](path))
