"""An uploaded file as decompressed bytes or as lines, within limits.

Only LF, CR LF and CR end a line. `str.splitlines` also breaks at U+2028 and others,
which are ordinary characters inside JSON and CSV texts.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from dashboard.datasets.limits import (
    MAX_LINE_CHARS,
    MAX_UNPACKED_BYTES,
    MAX_UNPACKED_RATIO,
    UNPACKED_FLOOR_BYTES,
)
from dashboard.datasets.parsing.records import Refusal, excerpt, quote

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
BUFFER_BYTES = 128 * 2**10
# UTF-32 first: its little-endian mark begins with that of UTF-16.
MARKS = [
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]


class Unreadable(Exception):
    """Reading cannot go on: carries the refusal that says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(slots=True)
class Source:
    path: Path
    format: str
    packing: str = ""  # "gzip", "zstd" or, where it is not packed, nothing
    # Maximum of decompressed bytes to read; `is_cut` is True if it was reached.
    most: int | None = field(default=None, compare=False)
    is_cut: bool = field(default=False, compare=False)
    num_unpacked: int = field(default=0, compare=False)
    num_bytes_read: int = field(default=0, compare=False)  # of the file as it lies

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader[Any]]:
        """Open the decompressed file; raises Unreadable if decompression fails."""
        with self.path.open("rb", buffering=0) as file:
            packed = _Counted(file, self)
            raw: Any = _Unpacked(packed, self) if self.packing else packed
            with io.BufferedReader(raw, BUFFER_BYTES) as stream:
                yield stream

    @property
    def max_unpacked(self) -> int:
        by_ratio = self.path.stat().st_size * MAX_UNPACKED_RATIO
        return min(MAX_UNPACKED_BYTES, max(UNPACKED_FLOOR_BYTES, by_ratio))

    def check(self, num_bytes: int) -> None:
        """Unreadable if this many decompressed bytes exceed `most`."""
        self.num_unpacked = num_bytes
        self.is_cut = self.most is not None and num_bytes > self.most
        if self.is_cut:
            raise Unreadable(refuse_size(num_bytes))


class _Counted(io.RawIOBase):
    """Counts the bytes read in the source."""

    def __init__(self, file: io.FileIO, source: Source) -> None:
        self._file = file
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        num_bytes = self._file.readinto(buffer) or 0
        self._source.num_bytes_read += num_bytes
        self._source.check(self._source.num_bytes_read)
        return num_bytes


class _Unpacked(io.RawIOBase):
    def __init__(self, packed: io.RawIOBase, source: Source) -> None:
        self._source = source
        self._limit = source.max_unpacked
        self._num_bytes = 0
        # zstd allocates at most 128 MiB, whatever window the file requests.
        self._stream: gzip.GzipFile | Any = (
            gzip.GzipFile(fileobj=io.BufferedReader(packed))
            if source.packing == "gzip"
            else pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        try:
            data = self._stream.read(len(view))
        except (OSError, EOFError, zlib.error) as error:
            raise Unreadable(
                Refusal(
                    value=f"after {self._num_bytes:,} bytes",
                    problem=f"Decompression with {self._source.packing} failed here: "
                    "the file is damaged or incomplete.",
                    remedy="Compress it again, or upload it uncompressed.",
                    ends_file=True,
                )
            ) from error
        self._num_bytes += len(data)
        self._source.check(self._num_bytes)
        if self._num_bytes > self._limit:
            raise Unreadable(refuse_size(self._num_bytes))
        view[: len(data)] = data
        return len(data)


def refuse_size(num_bytes: int) -> Refusal:
    return Refusal(
        value=f"{num_bytes:,} bytes",
        problem=f"The file decompresses to over {MAX_UNPACKED_RATIO} times its size, "
        f"or more than {MAX_UNPACKED_BYTES:,} bytes.",
        remedy="Keep fewer rows or columns, or split it into several files.",
        ends_file=True,
    )


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
                while text and not text.endswith(("\n", "\r")):
                    text = file.readline(MAX_LINE_CHARS)


@contextmanager
def open_text(source: Source, *, newline: str | None) -> Iterator[TextIO]:
    with source.open() as stream:
        encoding, errors = encoding_of(stream.peek(4))
        yield io.TextIOWrapper(
            stream, encoding=encoding, errors=errors, newline=newline
        )


def encoding_of(start: bytes) -> tuple[str, str]:
    """Return the encoding of a text that starts like this, and its error handler.

    Invalid bytes become surrogates, so that the error can name their line.
    """
    for mark, encoding in MARKS:
        if start.startswith(mark):
            return encoding, "surrogatepass"
    return "utf-8-sig", "surrogateescape"


def _refuse_length(number: int, text: str) -> Refusal | None:
    if len(text) <= MAX_LINE_CHARS:
        return None
    return Refusal(
        line=number,
        value=excerpt(text),
        problem=f"The line is longer than {MAX_LINE_CHARS:,} characters.",
        remedy="Shorten the row. Text this long does not fit a prompt.",
    )


def refuse_text(number: int, text: str) -> Refusal | None:
    if "\x00" in text:
        return Refusal(
            line=number,
            value=quote(text),
            problem="The line contains a NUL character.",
            remedy="Remove it, or save the file as UTF-8.",
        )
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # surrogateescape keeps a byte that is not UTF-8 as U+DC80 to U+DCFF.
        code = ord(text[error.start])
        is_byte = 0xDC80 <= code <= 0xDCFF
        name = f"byte 0x{code & 0xFF:02X}" if is_byte else f"U+{code:04X}"
        return Refusal(
            line=number,
            value=f"{name} in {quote(text)}",
            problem="The line is not valid text in the file's encoding.",
            remedy="Save the file as UTF-8.",
        )
    return None


def refuse_encoding(number: int, file: TextIO) -> Refusal:
    return Refusal(
        line=number,
        problem=f"The file starts as {file.encoding.upper()}, but the rest is not.",
        remedy="Save the file as UTF-8.",
        ends_file=True,
    )
