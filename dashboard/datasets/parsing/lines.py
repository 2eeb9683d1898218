"""Lines of a text file, each of bounded length.

Only LF, CR LF and CR end a line. `str.splitlines` also breaks at U+2028 and others,
which are ordinary characters inside JSON and CSV texts.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from dashboard.datasets.limits import MAX_LINE_CHARS
from dashboard.datasets.refusals import Refusal, quote

# UTF-32 first: its little-endian mark begins with that of UTF-16.
MARKS = [
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str


def read_lines(path: Path, *, newline: str | None) -> Iterator[Line | Refusal]:
    """Lines with their ends, numbered from 1; a refusal in place of a broken one."""
    with _open(path, newline) as file:
        number = 0
        while True:
            number += 1
            try:
                text = file.readline(MAX_LINE_CHARS + 1)
            except UnicodeError:
                yield _undecodable(number, file.encoding)
                return
            if not text:
                return
            yield _line_or_refusal(number, text)
            if len(text) > MAX_LINE_CHARS:
                _skip_rest(file, text)


def _open(path: Path, newline: str | None) -> TextIO:
    with path.open("rb") as file:
        start = file.read(4)
    encoding = next((name for mark, name in MARKS if start.startswith(mark)), None)
    if encoding:
        return path.open(encoding=encoding, newline=newline)
    # Bytes that are not UTF-8 arrive as surrogates, so the line can be named.
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline)


def _skip_rest(file: TextIO, text: str) -> None:
    while text and not text.endswith(("\n", "\r")):
        text = file.readline(MAX_LINE_CHARS)


def _line_or_refusal(number: int, text: str) -> Line | Refusal:
    if len(text) > MAX_LINE_CHARS:
        return Refusal(
            line=number,
            value=quote(text),
            problem=f"The line is longer than {MAX_LINE_CHARS:,} characters.",
            remedy="Shorten the row; texts this long do not fit a prompt.",
        )
    if "\x00" in text:
        return Refusal(
            line=number,
            value=quote(text),
            problem="The line holds a NUL character.",
            remedy="Remove it, or save the file as UTF-8.",
        )
    if not text.isascii() and (byte := _first_raw_byte(text)) is not None:
        return Refusal(
            line=number,
            value=f"byte 0x{byte:02X} in {quote(text)}",
            problem="The line is not UTF-8.",
            remedy="Save the file as UTF-8.",
        )
    return Line(number, text)


def _first_raw_byte(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return ord(text[error.start]) & 0xFF
    return None


def _undecodable(number: int, encoding: str) -> Refusal:
    return Refusal(
        line=number,
        problem=f"The file begins as {encoding.upper()}, but does not go on so.",
        remedy="Save the file as UTF-8.",
    )
