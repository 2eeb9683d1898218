"""An uploaded file as a stream of bytes, unpacked on the way, within bounds."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dashboard.datasets.limits import (
    MAX_UNPACKED_BYTES,
    MAX_UNPACKED_RATIO,
    UNPACKED_FLOOR_BYTES,
)
from dashboard.datasets.parsing.refusals import Refusal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
BUFFER_BYTES = 128 * 2**10


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
    # A look reads no more than so many bytes, unpacked; `is_cut` says that it ended
    # there, with a refusal.
    most: int | None = field(default=None, compare=False)
    is_cut: bool = field(default=False, compare=False)
    num_unpacked: int = field(default=0, compare=False)
    num_bytes_read: int = field(default=0, compare=False)  # of the file as it lies

    @contextmanager
    def open(self) -> Iterator[io.BufferedReader[Any]]:
        """What is in the file; Unreadable is raised where it cannot be unpacked."""
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
        """Unreadable where so many bytes, unpacked, are beyond what may be read."""
        self.num_unpacked = num_bytes
        self.is_cut = self.most is not None and num_bytes > self.most
        if self.is_cut:
            raise Unreadable(refuse_size(num_bytes))


class _Counted(io.RawIOBase):
    """Tells the source how far it has been read."""

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
        # zstd allocates 128 MiB at most, whatever window a file asks for.
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
            raise Unreadable(self._damaged()) from error
        self._num_bytes += len(data)
        self._source.check(self._num_bytes)
        if self._num_bytes > self._limit:
            raise Unreadable(refuse_size(self._num_bytes))
        view[: len(data)] = data
        return len(data)

    def _damaged(self) -> Refusal:
        return Refusal(
            value=f"{self._num_bytes:,} bytes unpacked before",
            problem=f"From here on the file cannot be unpacked with "
            f"{self._source.packing}: it is damaged or was cut short.",
            remedy="Pack it again, or upload it as it is.",
            ends_file=True,
        )


def refuse_size(num_bytes: int) -> Refusal:
    return Refusal(
        value=f"{num_bytes:,} bytes",
        problem=f"The file unpacks to more than {MAX_UNPACKED_RATIO} times its size, "
        f"or more than {MAX_UNPACKED_BYTES:,} bytes.",
        remedy="Keep fewer rows or columns, or split it into several files.",
        ends_file=True,
    )
