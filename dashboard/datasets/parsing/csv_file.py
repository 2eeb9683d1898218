"""CSV with a header line; fields are parted by commas, semicolons or tabs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dashboard.datasets.limits import MAX_LINE_CHARS
from dashboard.datasets.parsing.lines import read_lines
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.refusals import Refusal, quote

# Python's own limit is 131,072; it holds for the whole process.
csv.field_size_limit(MAX_LINE_CHARS)


class BrokenLine(Exception):
    """Carries a refusal through the csv module."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def read_csv(path: Path) -> Iterator[Parsed]:
    reader = csv.reader(_texts(path), strict=True, delimiter=_delimiter(path))
    start = 1
    try:
        header = next(reader, [])
        if refusal := _refuse_header(header):
            yield refusal
            return
        start = reader.line_num + 1
        for fields in reader:
            if fields:
                yield _record(start, header, fields)
            start = reader.line_num + 1
    except BrokenLine as error:
        yield error.refusal
    except csv.Error as error:
        # Where quotes are broken, no later line can be told from a field.
        yield _refuse_quotes(start, error)


def _texts(path: Path) -> Iterator[str]:
    # newline="": inside quotes a line end belongs to the field as it is.
    for line in read_lines(path, newline=""):
        if isinstance(line, Refusal):
            raise BrokenLine(line)
        yield line.text


def _delimiter(path: Path) -> str:
    first = next(read_lines(path, newline=""), None)
    if first is None or isinstance(first, Refusal):
        return ","
    counts = Counter(char for char in first.text if char in ",;\t")
    return max(",;\t", key=lambda char: counts[char])


def _refuse_header(header: list[str]) -> Refusal | None:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        return Refusal(
            line=1,
            value=quote(repeated[0]),
            problem="Two columns have the same name.",
            remedy="Rename one of them.",
        )
    refusal = refuse_names(1, header)
    if refusal and "" in header:
        return Refusal(
            line=1,
            value=quote(header),
            problem="A column has no name.",
            remedy="Name it; a table saved by pandas wants index=False.",
        )
    return refusal


def _record(line: int, header: list[str], fields: list[str]) -> Parsed:
    if len(fields) == len(header):
        return Record(line, dict(zip(header, fields, strict=True)))
    return Refusal(
        line=line,
        value=quote(fields),
        problem=f"The row has {len(fields)} fields, the header {len(header)}.",
        remedy="Put a text that holds the separator or a line break in double quotes.",
    )


def _refuse_quotes(line: int, error: csv.Error) -> Refusal:
    return Refusal(
        line=line,
        value=quote(str(error)),
        problem="The quotes of the row that begins here do not match.",
        remedy='Put the field in double quotes and write a quote inside it as "".',
    )
