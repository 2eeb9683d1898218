"""`client.datasets`: upload files as dataset versions.

A file is sent in parts. The server keeps the received parts, so that pushing the same
file again resumes the upload.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cohort.api.connection import Connection
from cohort.api.records import DatasetVersion, read
from cohort.http import Progress, Refused, Unreachable, headers_of

POLL_SECONDS = 1.0
PART_BYTES = 8 * 2**20  # the server's maximum
PART_SECONDS = 300.0
NOT_FOUND, CONFLICT = 404, 409
UNFINISHED = ("queued", "running")


class Datasets:
    def __init__(self, client: Connection) -> None:
        self._client = client

    def version(self, reference: str | int) -> DatasetVersion:
        """ "sums": the newest version, "sums@2": version 2, 12: the version's id."""
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
        template: str | None = None,
        answer: str | None = None,
        columns: Sequence[str] | None = None,
        system: str | None = None,
        last_reply: str | None = None,
        leave_out: int = 0,
        key: str = "",
        on_upload: Progress | None = None,
        on_import: Progress | None = None,
    ) -> DatasetVersion:
        """Upload a file and wait until it is imported as a dataset version.

        After a broken connection, the same call resumes the upload.

        dataset    add the rows as the next version of it; None: a new dataset
        prompt     prompt column, or a path such as extra_info.question; None:
                   suggested by the file's columns
        template   prompt template (Jinja) over the columns, instead of prompt
        answer     answer column or path; "": none; None: suggested
        system     column with the system message of each prompt; "": none
        last_reply a chat's last assistant message: answer, prefill, drop or refuse
        leave_out  skip rows with errors, if there are exactly this many
        key        idempotency key: one import per key within a day

        Raises ValueError for an invalid file, Refused for an error of the server.
        """
        file = Path(path)
        if not file.is_file():
            fault = "is not a file" if file.exists() else "does not exist"
            raise ValueError(
                f"{file} {fault}. Pass a file of rows, such as sums.jsonl."
            )
        if file.stat().st_size == 0:
            raise ValueError(f"{file} is empty. A dataset needs at least one row.")
        if key:
            headers_of(key)  # an invalid key fails before the upload
        if isinstance(dataset, str) and not dataset.isdecimal():
            dataset = self._client.find_named("dataset", dataset)
        mapping = {
            "name": name,
            "prompt": prompt,
            "template": template,
            "answer": answer,
            "columns": None if columns is None else [*columns],
            "system": system,
            "last_reply": last_reply,
            "leave_out": leave_out,
        }
        number = None if dataset is None else int(dataset)
        upload = self._send(file, number, key, on_upload)
        try:
            job = self._client.post(f"{upload}/import", mapping, key=key)
        except Refused as error:
            if file.stat().st_size <= PART_BYTES:  # a larger one stays on the page
                with suppress(Refused, Unreachable):
                    self._client.server.send("DELETE", upload)
            raise error.reworded({"send dataset_id: ": "pass dataset="}) from None
        while job["state"] in UNFINISHED:
            time.sleep(POLL_SECONDS)
            job = self._client.get(f"/imports/{job['id']}")
            if on_import and job["unit"] == "bytes":
                on_import(job["done"], job["total"])
        if job["version"] is None:
            raise ValueError(f"Failed to import {file.name}. {_error_text(job)}")
        return read(DatasetVersion, job["version"])

    def _send(
        self, file: Path, dataset: int | None, key: str, on_upload: Progress | None
    ) -> str:
        """Upload all parts; returns the upload's path in the API."""
        size = file.stat().st_size
        tree = {
            "filename": file.name,
            "num_bytes": size,
            "fingerprint": fingerprint(file),
            "dataset_id": dataset,
        }
        own_key = str(uuid.uuid5(uuid.NAMESPACE_OID, key)) if key else ""
        upload = self._client.post("/dataset-uploads", tree, key=own_key)
        path = f"/dataset-uploads/{upload['id']}"
        try:
            send_parts(
                self._client,
                file,
                f"{path}/parts?offset=",
                upload,
                lambda: self._client.get(path),
                on_upload,
            )
        except Refused as error:
            # With a key: imported under it before, and deleted since.
            if error.status != NOT_FOUND or not key:
                raise
        return path


def send_parts(
    client: Connection,
    file: Path,
    address: str,
    upload: Any,
    read_upload: Callable[[], Any],
    on_upload: Progress | None,
) -> None:
    """Upload what the server lacks of a file.

    address      path in the API, to which the offset of a part is appended
    upload       the upload as the server has it: num_received, is_whole
    read_upload  reads it again
    """
    size = file.stat().st_size
    with file.open("rb") as source:
        while not upload["is_whole"] and upload["num_received"] < size:
            if on_upload:
                on_upload(upload["num_received"], size)
            source.seek(upload["num_received"])
            part = source.read(PART_BYTES)
            if not part:
                raise ValueError(
                    f"{file} became shorter during the upload. Push it again."
                )
            place = f"{address}{upload['num_received']}"
            upload = _send_part(client, place, part, upload, read_upload)
    if on_upload:
        on_upload(size, size)


def _send_part(
    client: Connection,
    place: str,
    part: bytes,
    upload: Any,
    read_upload: Callable[[], Any],
) -> Any:
    """Send a part. 409: the offset differs, as after a lost response; the server says
    which one it expects.
    """

    def put() -> Any:
        return client.server.send(
            "PUT",
            place,
            part,
            {"Content-Type": "application/octet-stream"},
            timeout_seconds=PART_SECONDS,
        )

    try:
        return client.retry(put)
    except Refused as error:
        if error.status != CONFLICT:
            raise
        current = read_upload()
        is_same = current["num_received"] == upload["num_received"]
        if is_same and not current["is_whole"]:
            raise  # the server could not store it
        return current


def fingerprint(path: Path) -> str:
    """Return SHA-256 of the file: after a change, a new upload starts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _error_text(job: Any) -> str:
    if num := job["refusals"].get("count", 0):
        return (
            f"{num:,} rows have errors. Fix them, or pass leave_out={num} to skip them."
        )
    return str(job["error"])
