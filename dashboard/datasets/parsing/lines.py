"""Lines of a text file, each of bounded length.

Only LF, CR LF and CR end a line. `str.splitlines` also breaks at U+2028 and others,
which are ordinary characters inside JSON and CSV texts.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

from dashboard.datasets.limits import MAX_LINE_CHARS
from dashboard.datasets.parsing.refusals import Refusal, quote
from dashboard.datasets.parsing.source import Source, Unreadable

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
    refusal: Refusal | None = None  # why its text cannot be kept


def read_lines(source: Source, *, newline: str | None) -> Iterator[Line]:
    """Lines with their ends, numbered from 1."""
    with open_text(source, newline=newline) as file:
        number = 0
        while True:
            number += 1
            try:
                text = file.readline(MAX_LINE_CHARS + 1)
            except UnicodeError:
                yield Line(number, "", refuse_encoding(number, file))
                return
            except Unreadable as error:
                yield Line(number, "", replace(error.refusal, line=number))
                return
            if not text:
                return
            yield Line(
                number, text, _refuse_length(number, text) or refuse_text(number, text)
            )
            if len(text) > MAX_LINE_CHARS:
                _skip_rest(file, text)


@contextmanager
def open_text(source: Source, *, newline: str | None) -> Iterator[TextIO]:
    with source.open() as stream:
        encoding, errors = encoding_of(stream.peek(4))
        yield io.TextIOWrapper(
            stream, encoding=encoding, errors=errors, newline=newline
        )


def encoding_of(start: bytes) -> tuple[str, str]:
    """The encoding of a text that begins so, and how to take what is not in it.

    Characters that have no place in a text arrive as surrogates, so the line that holds
    them can be named.
    """
    for mark, encoding in MARKS:
        if start.startswith(mark):
            return encoding, "surrogatepass"
    return "utf-8-sig", "surrogateescape"


def _skip_rest(file: TextIO, text: str) -> None:
    while text and not text.endswith(("\n", "\r")):
        text = file.readline(MAX_LINE_CHARS)


def _refuse_length(number: int, text: str) -> Refusal | None:
    if len(text) <= MAX_LINE_CHARS:
        return None
    return Refusal(
        line=number,
        value=quote(text),
        problem=f"The line is longer than {MAX_LINE_CHARS:,} characters.",
        remedy="Shorten the row; texts this long do not fit a prompt.",
    )


def refuse_text(number: int, text: str) -> Refusal | None:
    if "\x00" in text:
        return Refusal(
            line=number,
            value=quote(text),
            problem="The line holds a NUL character.",
            remedy="Remove it, or save the file as UTF-8.",
        )
    if text.isascii() or (char := _first_surrogate(text)) is None:
        return None
    return Refusal(
        line=number,
        value=f"{_named(char)} in {quote(text)}",
        problem="The line is not valid text in the file's encoding.",
        remedy="Save the file as UTF-8.",
    )


def _first_surrogate(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def _named(char: str) -> str:
    # surrogateescape keeps a byte that is not UTF-8 as U+DC80 to U+DCFF.
    code = ord(char)
    is_byte = 0xDC80 <= code <= 0xDCFF
    return f"byte 0x{code & 0xFF:02X}" if is_byte else f"U+{code:04X}"


def refuse_encoding(number: int, file: TextIO) -> Refusal:
    return Refusal(
        line=number,
        problem=f"The file begins as {file.encoding.upper()}, but does not go on so.",
        remedy="Save the file as UTF-8.",
        ends_file=True,
    )
