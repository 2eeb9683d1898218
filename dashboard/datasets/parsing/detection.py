"""The format of a file, by how it begins or else by its name; and its reader."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from dashboard.datasets.limits import MAX_NAME_CHARS
from dashboard.datasets.parsing.csv_reader import read_csv, read_tsv
from dashboard.datasets.parsing.json_reader import read_json_file, read_jsonl
from dashboard.datasets.parsing.parquet import read_parquet
from dashboard.datasets.parsing.records import Parsed, bounded
from dashboard.datasets.parsing.streams import MAGICS, Source, Unreadable, encoding_of
from dashboard.project.errors import UserError

SNIFFED_BYTES = 64 * 2**10
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PACKED_SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
}
NAMES = {
    "jsonl": "JSON Lines",
    "json": "a JSON document",
    "csv": "CSV",
    "tsv": "TSV",
    "parquet": "Parquet",
}
READERS = {
    "jsonl": read_jsonl,
    "json": read_json_file,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
}
CHOICES = "JSONL, JSON, CSV, TSV or Parquet"
# Where they lie, what they are, what they mean.
FOREIGN = [
    (0, b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (0, b"\xd0\xcf\x11\xe0", "an old spreadsheet or document"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"BZh", "compressed with bzip2"),
    (0, b"\xfd7zXZ", "compressed with xz"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive"),
    (0, b"Rar!\x1a", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"\xff\xff\xff\xff", "an Arrow stream"),
    (0, b"Obj\x01", "an Avro file"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"version https://git-lfs.github.com/", "a Git LFS pointer, not the file"),
    (0, b"<!doctype html", "a web page"),
    (0, b"<html", "a web page"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"\x93NUMPY", "a NumPy array"),
    *((0, bytes([0x80, version]), "a pickle") for version in range(2, 6)),
]
_OPENING = re.compile(r'\{\s*("|\}|$)|\[\s*(\{|\]|$)')


@dataclass(frozen=True, kw_only=True, slots=True)
class Detected:
    format: str
    packing: str = ""
    remark: str = ""  # where the name says otherwise


def detect(filename: str, path: Path) -> Detected:
    """ValueError, with what to do, for a file that no reader can read."""
    start = _start(Source(path, ""))
    if not start:
        raise UserError(
            "datasets.file_empty", f"{filename} is empty. Choose a file with rows."
        )
    packing = next(
        (kind for magic, kind in MAGICS.items() if start.startswith(magic)), ""
    )
    if packing:
        start = _unpacked_start(filename, path, packing)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:20].lower()
    for offset, magic, kind in FOREIGN:
        if start[offset:].startswith(magic) or text.startswith(magic):
            raise UserError(
                "datasets.unsupported_format",
                f"{filename} is {kind}. Download or extract the data itself, or save "
                f"it as {CHOICES}.",
            )
    stem = PurePath(filename)
    if stem.suffix.lower() in PACKED_SUFFIXES:
        stem = stem.with_suffix("")
    named = SUFFIXES.get(stem.suffix.lower())
    format_ = _sniff(start, named) or named
    if format_ is None:
        raise UserError(
            "datasets.unknown_format",
            f"Cohort does not recognise the format of {filename}. Save it as {CHOICES} "
            "with the matching file extension.",
        )
    if format_ == "parquet" and not start.startswith(b"PAR1"):
        raise UserError(
            "datasets.unknown_format",
            f"{filename} has a Parquet extension, but is not a Parquet file. Write it "
            f"again, or save it as {CHOICES}.",
        )
    suffix = PurePath(filename).suffix.lower()
    parts = []
    if named and named != format_:
        parts.append(
            f"The file extension says {NAMES[named]}, but the content is "
            f"{NAMES[format_]}. Cohort reads the content."
        )
    if suffix in PACKED_SUFFIXES and PACKED_SUFFIXES[suffix] != packing:
        how = f"compressed with {packing}" if packing else "not compressed"
        parts.append(f"The name ends in {suffix}, but the file is {how}.")
    return Detected(
        format=format_,
        packing=packing,
        remark=" ".join(parts),
    )


def read_records(source: Source) -> Generator[Parsed, None, None]:
    """Yield every row as a record or a refusal; at least one of either."""
    with closing(_read(source)) as parsed:
        yield from bounded(parsed)


def _read(source: Source) -> Generator[Parsed, None, None]:
    try:
        yield from READERS[source.format](source)
    except Unreadable as error:
        # It cannot be unpacked from its first byte on, or not as a whole.
        yield replace(error.refusal, ends_file=True)


def _start(source: Source) -> bytes:
    with source.open() as stream:
        return stream.read(SNIFFED_BYTES)


def _unpacked_start(filename: str, path: Path, packing: str) -> bytes:
    try:
        start = _start(Source(path, "", packing))
    except Unreadable as error:
        raise UserError("datasets.file_damaged", f"{filename}: {error}") from error
    if not start:
        raise UserError(
            "datasets.file_empty",
            f"{filename} is empty once decompressed. Choose a file with rows.",
        )
    if start.startswith(tuple(MAGICS)):
        raise UserError(
            "datasets.compressed_twice",
            f"{filename} is compressed twice. Decompress it once, then upload it "
            "again.",
        )
    return start


def _sniff(start: bytes, named: str | None) -> str | None:
    """Return the format, if the beginning leaves no doubt about it."""
    if start.startswith(b"PAR1"):
        return "parquet"
    encoding, _ = encoding_of(start)
    text = start.decode(encoding, "replace").lstrip()
    if _OPENING.match(text):
        is_lines = text[0] == "{" and _is_lines(text, named)
        return "jsonl" if is_lines else "json"
    if named in ("jsonl", "json", None):
        return _table_format(text)
    if named == "tsv" and _table_format(text) == "csv":
        return "csv"
    return None


def _is_lines(text: str, named: str | None) -> bool:
    """Return whether a text that begins with an object has an object on each line."""
    first, *others = re.split(r"[\r\n]+", text, maxsplit=1)
    if not others or not others[0].strip():
        return named != "json"  # a single line may be either
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        # A document over several lines breaks where an object or a list is open.
        return not re.search(r"[\[{,:]\s*$", first)
    return True


def _table_format(text: str) -> str | None:
    """csv or tsv, when header and first row have the same fields, two or more."""
    lines = re.split(r"\r\n?|\n", text, maxsplit=2)[:2]
    if len(lines) < 2 or re.search(r"[{}\[\]]", lines[0]):
        return None
    for delimiter, format_ in (("\t", "tsv"), (",", "csv"), (";", "csv")):
        try:
            header, row = csv.reader(lines, delimiter=delimiter, strict=True)
        except (csv.Error, ValueError):
            continue
        names = {name for name in header if 0 < len(name.strip()) <= MAX_NAME_CHARS}
        if len(names) == len(header) == len(row) > 1:
            return format_
    return None
