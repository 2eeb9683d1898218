"""A run as TensorBoard keeps its own: a zip file, written while it is read."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

from dashboard.exchange.exports.metrics import read_points
from dashboard.exchange.exports.span import Span
from dashboard.exchange.formats.tfevents import write_scalars, write_version
from dashboard.runs.models import Run

PIECE_BYTES = 64 * 2**10


def folder_name(run: Run) -> str:
    """The run's name as far as every system takes it, and its number."""
    name = re.sub(r"[^\w.-]+", "-", run.name).strip("-.")
    return f"{name or 'run'}-{run.pk}"


def write_tensorboard(run: Run, span: Span) -> Iterator[bytes]:
    """A folder of the run's name with one event file."""
    began = int(run.created_at.timestamp())
    name = f"{folder_name(run)}/events.out.tfevents.{began}.cohort.{run.pk}.0"
    return _zipped([(name, _events(run, span))])


def _events(run: Run, span: Span) -> Iterator[bytes]:
    yield write_version(run.created_at.timestamp())
    for point in read_points(run, span):
        if point.values:
            yield write_scalars(point.step, point.time.timestamp(), point.values)


def _zipped(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, parts in files:
            # Its length is not known yet, and may be too much for the old format.
            with archive.open(name, "w", force_zip64=True) as file:
                for part in parts:
                    file.write(part)
                    if sink.length >= PIECE_BYTES:
                        yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """What cannot be sought in, and is taken away while it is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self.length += len(data)
        return len(data)

    def taken(self) -> bytes:
        data, self._parts, self.length = b"".join(self._parts), [], 0
        return data
