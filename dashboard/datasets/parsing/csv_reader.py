"""CSV and TSV with a header line; CSV separates by commas, semicolons or tabs."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from dashboard.datasets.limits import MAX_LINE_CHARS
from dashboard.datasets.parsing.records import (
    Parsed,
    Record,
    Refusal,
    excerpt,
    quote,
    refuse_names,
)
from dashboard.datasets.parsing.streams import Source, Unreadable, read_lines

# Python's own limit is 131,072; it holds for the whole process.
csv.field_size_limit(MAX_LINE_CHARS)

# A first line for Excel, which names the separator.
_EXCEL = re.compile(r'"?sep=([,;\t])?"?', re.IGNORECASE)
QUOTE = "Put fields that contain the separator or a line break in double quotes."
FILL_UP = (
    "Add a value or an empty field for every column. Put fields that contain a line "
    "break in double quotes."
)


def read_csv(source: Source) -> Iterator[Parsed]:
    texts = (line.text for line in read_lines(source, newline=""))
    written = (text for text in texts if text.strip())
    header = next(written, "")
    if named := _EXCEL.fullmatch(header.strip(" \r\n")):
        header = named[1] or next(written, "")
    yield from _read(source, max(",;\t", key=header.count))


def read_tsv(source: Source) -> Iterator[Parsed]:
    yield from _read(source, "\t")


def _read(source: Source, delimiter: str) -> Iterator[Parsed]:
    texts = _Texts(source)
    reader = csv.reader(texts, strict=True, delimiter=delimiter)
    start = 1
    try:
        # The first line that is neither blank nor for Excel.
        line, header, refusal = 1, list[str](), None
        for fields in reader:
            first, problem = texts.start, texts.take_refusal()
            is_for_excel = first == 1 and _EXCEL.fullmatch(texts.beginning.strip())
            if (fields or problem) and not is_for_excel:
                line, header, refusal = first, fields, problem
                break
        # Some programs end each line with the separator.
        ends_empty = len(header) > 1 and not header[-1]
        if ends_empty:
            header.pop()
        if refusal := refusal or _refuse_header(line, header):
            yield replace(refusal, ends_file=True)
            return
        start = reader.line_num + 1
        for fields in reader:
            if refusal := texts.take_refusal():
                yield refusal
            elif fields:
                if ends_empty and len(fields) > len(header) and not fields[-1]:
                    fields.pop()
                yield _record(start, header, fields)
            start = reader.line_num + 1
    except Unreadable as error:
        yield replace(error.refusal, ends_file=True)
    except csv.Error:
        # After unbalanced quotes, the next row cannot be found.
        yield Refusal(
            line=start,
            value=excerpt(texts.beginning),
            problem="The row that starts here has unbalanced quotes.",
            remedy='Put the field in double quotes and write a quote inside it as "".',
            ends_file=True,
        )


class _Texts:
    """Lines for the csv module, and the errors of the current row."""

    def __init__(self, source: Source) -> None:
        # newline="": inside quotes a line end belongs to the field as it is.
        self._lines = read_lines(source, newline="")
        self._num_chars = 0
        self._refusal: Refusal | None = None
        self.start, self.beginning = (
            1,
            "",
        )  # of the current row: its first line and text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if not self._num_chars:
            self.start, self.beginning = line.number, line.text
        self._num_chars += len(line.text)
        if line.refusal and (not line.text or line.refusal.ends_file):
            raise Unreadable(line.refusal)
        if self._num_chars > MAX_LINE_CHARS:
            raise Unreadable(
                line.refusal
                or Refusal(
                    line=self.start,
                    value=excerpt(line.text),
                    problem="The row of several lines has more than "
                    f"{MAX_LINE_CHARS:,} characters.",
                    remedy="Close the open double quote, or shorten the row.",
                    ends_file=True,
                )
            )
        self._refusal = self._refusal or line.refusal
        return line.text

    def take_refusal(self) -> Refusal | None:
        """Return the first error of the row, and start the next row."""
        refusal, self._refusal = self._refusal, None
        self._num_chars = 0
        return refusal


def _refuse_header(line: int, header: list[str]) -> Refusal | None:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        return Refusal(
            line=line,
            value=quote(repeated[0]),
            problem="Two columns have the same name.",
            remedy="Rename one of them.",
        )
    refusal = refuse_names(line, header)
    if refusal and "" in header:
        return Refusal(
            line=line,
            value=quote(header),
            problem="A column has no name.",
            remedy="Name the column. If pandas wrote the file, use index=False.",
        )
    return refusal


def _record(line: int, header: list[str], fields: list[str]) -> Parsed:
    if len(fields) == len(header):
        return Record(line, dict(zip(header, fields, strict=True)))
    is_short = len(fields) < len(header)
    plural = "" if len(fields) == 1 else "s"
    return Refusal(
        line=line,
        value=quote(fields),
        problem=f"The row has {len(fields)} field{plural}, the header {len(header)}.",
        remedy=FILL_UP if is_short else QUOTE,
    )
