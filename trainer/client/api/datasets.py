"""`client.datasets`: files that become versions.

A file is sent in parts. The server keeps what it has of one, also when this process
ends, and the same file is gone on with.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.client.api.records import DatasetVersion, read
from trainer.client.http import Progress, Refused, Unreachable, headers_of

if TYPE_CHECKING:
    from trainer.client.api.client import Client

LOOK_SECONDS = 1.0
PART_BYTES = 8 * 2**20  # the most that the server takes at once
PART_SECONDS = 300.0
NOT_FOUND, CONFLICT = 404, 409
UNDER_WAY = ("queued", "running")


class Datasets:
    def __init__(self, client: Client) -> None:
        self._client = client

    def version(self, reference: str | int) -> DatasetVersion:
        """ "sums": the newest of sums, "sums@2": its second, 12: by its id."""
        text = str(reference).strip()
        if text.isdecimal():
            tree = self._client.get(f"/dataset-versions/{text}")
        else:
            tree = self._client.find_version("dataset", text)
        return read(DatasetVersion, tree)

    def push(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        dataset: str | int | None = None,
        prompt: str | None = None,
        answer: str | None = None,
        columns: Sequence[str] | None = None,
        leave_out: int = 0,
        key: str = "",
        on_upload: Progress | None = None,
        on_import: Progress | None = None,
    ) -> DatasetVersion:
        """Upload a file and wait until it is a version; the server goes on by itself.

        Pushed again after a broken connection, it goes on where it was.

        dataset    its rows become the next version of this one; else a new dataset
        prompt     the prompt's column; None: guessed by its name
        answer     the answer's column; "": none; None: guessed
        leave_out  import the other rows if exactly so many have errors
        key        pushed again with the same one within a day, it is done once

        ValueError says what is wrong with the file; Refused what the server says.
        """
        file = Path(path)
        _check(file)
        if key:
            headers_of(key)  # a wrong one is refused before the file is sent
        if isinstance(dataset, str) and not dataset.isdecimal():
            dataset = self._client.find_named("dataset", dataset)
        mapping = {
            "name": name,
            "prompt": prompt,
            "answer": answer,
            "columns": None if columns is None else [*columns],
            "leave_out": leave_out,
        }
        number = None if dataset is None else int(dataset)
        place = self._send(file, number, key, on_upload)
        try:
            job = self._client.post(f"{place}/import", mapping, key=key)
        except Refused as error:
            if file.stat().st_size <= PART_BYTES:  # a larger one waits on the page
                with suppress(Refused, Unreachable):
                    self._client.server.send("DELETE", place)
            raise error.reworded({"send dataset_id: ": "pass dataset="}) from None
        while job["state"] in UNDER_WAY:
            time.sleep(LOOK_SECONDS)
            job = self._client.get(f"/imports/{job['id']}")
            if on_import and job["unit"] == "bytes":
                on_import(job["done"], job["total"])
        if job["version"] is None:
            raise ValueError(f"{file.name} was not imported. {_why(job)}")
        return read(DatasetVersion, job["version"])

    def _send(
        self, file: Path, dataset: int | None, key: str, on_upload: Progress | None
    ) -> str:
        """The whole file's place on the server, to be imported."""
        size = file.stat().st_size
        tree = {
            "filename": file.name,
            "num_bytes": size,
            "fingerprint": fingerprint(file),
            "dataset_id": dataset,
        }
        own_key = str(uuid.uuid5(uuid.NAMESPACE_OID, key)) if key else ""
        upload = self._client.post("/dataset-uploads", tree, key=own_key)
        place = f"/dataset-uploads/{upload['id']}"
        with file.open("rb") as source:
            while not upload["is_whole"] and upload["num_received"] < size:
                if on_upload:
                    on_upload(upload["num_received"], size)
                source.seek(upload["num_received"])
                part = source.read(PART_BYTES)
                if not part:
                    raise ValueError(f"{file} was shortened while it was sent.")
                try:
                    upload = self._send_part(place, part, upload["num_received"])
                except Refused as error:
                    if error.status == NOT_FOUND and key:
                        break  # imported under this key before, and let go since
                    raise
        if on_upload:
            on_upload(size, size)
        return place

    def _send_part(self, place: str, part: bytes, offset: int) -> Any:
        """409: the server has more, or less, as when an answer was lost; it says where
        to go on."""

        def put() -> Any:
            return self._client.server.send(
                "PUT",
                f"{place}/parts?offset={offset}",
                part,
                {"Content-Type": "application/octet-stream"},
                timeout_seconds=PART_SECONDS,
            )

        try:
            return self._client.retry(put)
        except Refused as error:
            if error.status != CONFLICT:
                raise
            there = self._client.get(place)
            if there["num_received"] == offset and not there["is_whole"]:
                raise  # it could not be stored
            return there


def fingerprint(path: Path) -> str:
    """SHA-256 of the file: what changed is another file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(file: Path) -> None:
    if not file.is_file():
        is_there = "is not a file" if file.exists() else "does not exist"
        raise ValueError(f"{file} {is_there}. Name a file of rows, such as sums.jsonl.")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty. A dataset has at least one row.")


def _why(job: Any) -> str:
    if num := job["refusals"].get("count", 0):
        return f"{num:,} rows have errors; leave_out={num} imports the others."
    return str(job["error"])
