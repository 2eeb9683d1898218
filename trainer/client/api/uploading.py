"""A file and fields as one form, read from the disk while they are sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.client.http import Server, Unreachable

Progress = Callable[[int, int | None], None]  # bytes done, of how many
PIECE_BYTES = 2**16
UPLOAD_SECONDS = 300.0  # the server reads small files before it answers


class Form:
    """The body; each iteration reads the file anew, so it can be sent again."""

    def __init__(
        self,
        path: Path,
        fields: Iterable[tuple[str, str]],
        on_progress: Progress | None = None,
    ) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._on_progress = on_progress
        self._boundary = uuid.uuid4().hex
        self._head = self._write_head(fields)
        self._tail = f"\r\n--{self._boundary}--\r\n".encode()
        self.fault = ""  # why the file could not be read to its end

    @property
    def headers(self) -> dict[str, str]:
        num_bytes = len(self._head) + self._size + len(self._tail)
        return {
            "Content-Type": f"multipart/form-data; boundary={self._boundary}",
            "Content-Length": str(num_bytes),
        }

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        num_sent = 0
        try:
            with self._path.open("rb") as file:
                while num_sent < self._size:
                    piece = file.read(min(PIECE_BYTES, self._size - num_sent))
                    if not piece:
                        raise EOFError("it became shorter meanwhile")
                    yield piece
                    num_sent += len(piece)
                    if self._on_progress:
                        self._on_progress(num_sent, self._size)
        except (OSError, EOFError) as error:
            self.fault = f"{self._path} cannot be read: {error}."
            raise
        yield self._tail

    def _write_head(self, fields: Iterable[tuple[str, str]]) -> bytes:
        parts = [
            f"--{self._boundary}\r\n"
            f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields
        ]
        name = self._path.name.translate({34: "%22", 13: "%0D", 10: "%0A"})
        file = (
            f"--{self._boundary}\r\n"
            f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        return "".join(parts).encode() + file.encode("utf-8", "replace")


def upload(server: Server, path: str, form: Form, headers: Mapping[str, str]) -> Any:
    """ValueError where the file is at fault."""
    try:
        return server.send(
            "POST",
            path,
            form,
            {**headers, **form.headers},
            timeout_seconds=UPLOAD_SECONDS,
        )
    except Unreachable:
        if form.fault:
            raise ValueError(form.fault) from None
        raise
