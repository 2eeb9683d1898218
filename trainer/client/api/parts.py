"""A file too large for one request, in parts: what the server has of it stays there,
also when this process ends, and the same file is gone on with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trainer.client.api.asking import Asker
from trainer.client.api.uploading import Progress
from trainer.client.http import Refused

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
                raise ValueError(f"{path} became shorter while it was sent.")
            upload = _send(asker, place, part, upload["num_received"])
    if on_progress:
        on_progress(size, size)
    asker.post(f"{place}/finish")
    number: int = upload["id"]
    return number


def _begin(asker: Asker, path: Path, tree: dict[str, Any]) -> Any:
    try:
        return asker.post("/dataset-uploads", tree)
    except Refused as error:
        if error.status != NOT_FOUND or tree["dataset_id"] is not None:
            raise
        raise ValueError(
            f"{path} has {tree['num_bytes']:,} bytes, and this server takes no file in "
            "parts. Pack it with gzip or zstd, or upload it on the page Datasets."
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
