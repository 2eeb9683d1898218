"""Responses that are streamed while they are made, or stored compressed."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.http import content_disposition_header

logger = logging.getLogger(__name__)


def pack_assets(folder: Path) -> None:
    """Write each script and style compressed beside it, as WhiteNoise sends it.

    A compressed file with its source's time is kept. In a read-only folder only
    `make setup` can compress; files without a compressed one are sent as they are.
    """
    for path in folder.rglob("*"):
        if path.suffix not in {".css", ".js", ".svg"}:
            continue
        packed = path.with_name(f"{path.name}.gz")
        time = path.stat().st_mtime_ns
        is_there = packed.exists()
        # WhiteNoise's own command sets the time with a float's precision.
        if is_there and abs(packed.stat().st_mtime_ns - time) < 1_000_000:
            continue
        # Several processes may start at once.
        unfinished = folder.with_name(f".{packed.name}-{os.getpid()}")
        try:
            unfinished.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
            os.utime(unfinished, ns=(time, time))
            unfinished.replace(packed)
        except OSError as error:
            if is_there:
                logger.warning("old %s is sent; run make setup. %s", packed, error)


class Streamed(StreamingHttpResponse):
    """A response that is sent while it is generated; under ASGI Django would build it
    first.

    An error before the first piece gets the usual response. A later one aborts the
    connection, so that a part is not mistaken for the whole.
    """

    def __init__(self, pieces: Iterable[bytes], **given: Any) -> None:
        super().__init__(_Begun(pieces), **given)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        while (piece := await sync_to_async(_next)(pieces)) is not None:
            yield piece


def mark_for_spreadsheets(response: Streamed) -> Streamed:
    """Begin a CSV file with the mark by which spreadsheets know UTF-8.

    A program would read it as a part of the first column's name.
    """
    if response["Content-Type"].startswith("text/csv"):
        response.streaming_content = chain(["\ufeff".encode()], iter(response))
    return response


class _Begun:
    """Pieces of which the first is there."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._rest = iter(pieces)
        try:
            self._first = next(self._rest, b"")
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        first, self._first = self._first, b""
        if first:
            yield first
        yield from self._rest

    def close(self) -> None:
        for iterator in (self._rest, self._pieces):
            if hasattr(iterator, "close"):
                iterator.close()


def _next(pieces: Iterator[bytes]) -> bytes | None:
    try:
        return next(pieces, None)
    finally:
        # A slow reader would occupy one of the few slots.
        close_old_connections()


def attach(
    pieces: Iterable[bytes], *, filename: str, content_type: str, **headers: str
) -> Streamed:
    """`headers` by their names with underscores: Content_Length."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    disposition = content_disposition_header(True, filename) or "attachment"
    return Streamed(
        pieces,
        content_type=content_type,
        headers={"Content-Disposition": disposition, **named},
    )


def pack_answer(found: Any) -> bytes:
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), 5, mtime=0)


def send_packed(request: HttpRequest, packed: bytes) -> HttpResponse:
    """Decompressed size, as the reader sees it."""
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        packed = gzip.decompress(packed)
    return HttpResponse(packed, content_type="application/json", headers=headers)


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        pack_assets(Path(folder))
