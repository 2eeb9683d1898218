"""Files sent and fetched, in parts where they are large.

Of a file in parts the server keeps what it has, also when this process ends, and the
same file is gone on with.
"""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainer.client.api.records import Asker, query_of
from trainer.client.http import Refused, Server, Unreachable

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


PART_BYTES = 8 * 2**20  # the most that the server takes at once
PART_SECONDS = 300.0
NOT_FOUND, CONFLICT = 404, 409


def send_in_parts(
    asker: Asker,
    path: Path,
    *,
    dataset_id: int | None,
    on_progress: Progress | None,
) -> int:
    """The whole file's number on the server, to be imported."""
    size = path.stat().st_size
    tree = {
        "filename": path.name,
        "num_bytes": size,
        "fingerprint": fingerprint(path),
        "dataset_id": dataset_id,
    }
    upload = _begin(asker, path, tree)
    place = f"/dataset-uploads/{upload['id']}"
    with path.open("rb") as file:
        while not upload["is_whole"] and upload["num_received"] < size:
            if on_progress:
                on_progress(upload["num_received"], size)
            file.seek(upload["num_received"])
            part = file.read(PART_BYTES)
            if not part:
                raise ValueError(f"{path} was shortened while it was sent.")
            upload = _send(asker, place, part, upload["num_received"])
    if on_progress:
        on_progress(size, size)
    number: int = upload["id"]
    return number


def _begin(asker: Asker, path: Path, tree: dict[str, Any]) -> Any:
    try:
        return asker.post("/dataset-uploads", tree)
    except Refused as error:
        if error.status != NOT_FOUND or tree["dataset_id"] is not None:
            raise
        raise ValueError(
            f"{path} has {tree['num_bytes']:,} bytes, and this server accepts no files "
            "in parts. Pack it with gzip or zstd, or upload it on the page Datasets."
        ) from None


def _send(asker: Asker, place: str, part: bytes, offset: int) -> Any:
    """409: the server has more, or less, as when an answer was lost; it says where to
    go on."""
    headers = {"Content-Type": "application/octet-stream"}

    def put() -> Any:
        return asker.server.send(
            "PUT",
            f"{place}/parts?offset={offset}",
            part,
            headers,
            timeout_seconds=PART_SECONDS,
        )

    try:
        return asker.patience.ask(put)
    except Refused as error:
        if error.status != CONFLICT:
            raise
        there = asker.get(place)
        if there["num_received"] == offset:  # it could not be stored
            raise
        return there


def fingerprint(path: Path) -> str:
    """SHA-256 of the file: what changed is another file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


TABLES = ("metrics", "completions")
ARCHIVES = ("tensorboard",)
FORMATS = ("csv", "jsonl", "parquet")
FILES = [f"{table}.{form}" for table in TABLES for form in FORMATS]
FILES += [f"{archive}.zip" for archive in ARCHIVES]


def file_name(path: Path, what: str = "") -> str:
    """Of the file on the server.

    >>> file_name(Path("run-7.csv")), file_name(Path("completions.parquet"))
    ('metrics.csv', 'completions.parquet')
    """
    if what in FILES:
        return what
    kinds = (*TABLES, *ARCHIVES)
    named = what or next((one for one in kinds if one in path.stem.lower()), "metrics")
    name = f"{named}.{path.suffix.lower().removeprefix('.')}"
    if name not in FILES:
        raise ValueError(
            f"A run is not exported as {name!r}. There are: {', '.join(FILES)}."
        )
    return name


def default_name(what: str = "") -> str:
    """
    >>> default_name(), default_name("completions"), default_name("tensorboard")
    ('metrics.csv', 'completions.csv', 'tensorboard.zip')
    """
    return file_name(Path("-.zip" if what in ARCHIVES else "-.csv"), what)


def download(
    asker: Asker,
    source: str,
    query: Mapping[str, str | int | None],
    target: Path,
    *,
    overwrite: bool,
    on_progress: Progress | None = None,
) -> None:
    if target.exists() and not overwrite:
        raise ValueError(
            f"{target} already exists. Name another file, or overwrite it."
        )
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    asked = f"{source}{query_of(**query)}"

    def take() -> None:
        with draft.open("wb") as file:
            _copy(asker, asked, file, on_progress)

    try:
        asker.patience.ask(take)  # from its start: it is made while it is sent
        draft.replace(target)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error}.") from None
    finally:
        draft.unlink(missing_ok=True)


def print_file(
    asker: Asker, source: str, query: Mapping[str, str | int | None]
) -> None:
    """To standard output; what is printed cannot be taken back, so once."""
    _copy(asker, f"{source}{query_of(**query)}", sys.stdout.buffer, None)


def _copy(
    asker: Asker, asked: str, file: BinaryIO, on_progress: Progress | None
) -> None:
    num_bytes = 0
    for piece in asker.server.pieces(asked):
        file.write(piece)
        num_bytes += len(piece)
        if on_progress:
            on_progress(num_bytes, None)
