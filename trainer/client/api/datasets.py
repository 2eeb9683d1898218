"""`client.datasets`: files that become versions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.client.api.files import Form, Progress, send_in_parts, upload
from trainer.client.api.records import (
    Asker,
    Dataset,
    DatasetVersion,
    Import,
    Listing,
    read,
)
from trainer.client.http import Refused, headers_of

AT_ONCE_BYTES = 8 * 2**20  # larger files come in parts, which can be gone on with
LOOK_SECONDS = 1.0
UNDER_WAY = ("queued", "running")


class Datasets:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def list(self, *, limit: int | None = None) -> Listing[Dataset]:
        """Without those in the trash, the newest first."""
        return self._asker.listing(
            "/datasets", lambda tree: read(Dataset, tree), limit=limit
        )

    def versions(
        self, dataset: int | Dataset, *, limit: int | None = None
    ) -> Listing[DatasetVersion]:
        """The newest first. A version never changes."""
        number = dataset.id if isinstance(dataset, Dataset) else dataset
        path = f"/datasets/{number}/versions"
        return self._asker.listing(path, _version, limit=limit)

    def version(self, reference: str | int) -> DatasetVersion:
        """ "sums": the newest of sums, "sums@2": its second, 12: by its id."""
        text = str(reference).strip()
        if text.isdecimal():
            return _version(self._asker.get(f"/dataset-versions/{text}"))
        name, number = split_reference(text)
        dataset = self._named(name)
        for version in self.versions(dataset, limit=1 if number is None else None):
            if number in (None, version.number):
                return version
        has = "none" if number is None else f"no version {number}"
        raise ValueError(f"The dataset {dataset.name!r} has {has}.")

    def _named(self, name: str) -> Dataset:
        there = self.list()
        found = [one for one in there if one.name == name]
        if found:
            return found[0]
        names = ", ".join(repr(one.name) for one in there[:20]) or "none yet"
        raise ValueError(f"There is no dataset {name!r}. There are: {names}.")

    def push(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        dataset: str | int | Dataset | None = None,
        prompt: str | None = None,
        answer: str | None = None,
        columns: Sequence[str] | None = None,
        leave_out: int = 0,
        key: str = "",
        on_upload: Progress | None = None,
        on_import: Progress | None = None,
    ) -> DatasetVersion:
        """Upload a file and wait until it is a version.

        A large one is sent in parts; pushed again, it goes on where it was.

        dataset    its rows become the next version of this one; else a new dataset
        prompt     the prompt's column; None: guessed by its name
        answer     the answer's column; "": none; None: guessed
        leave_out  import the other rows if exactly so many have errors
        key        pushed again with the same one within a day, it is done once

        ValueError says what is wrong with the file; Refused what the server says.
        """
        job = self.upload(
            path,
            name=name,
            dataset=dataset,
            prompt=prompt,
            answer=answer,
            columns=columns,
            leave_out=leave_out,
            key=key,
            on_progress=on_upload,
        )
        return self.wait(job, on_progress=on_import)

    def upload(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        dataset: str | int | Dataset | None = None,
        prompt: str | None = None,
        answer: str | None = None,
        columns: Sequence[str] | None = None,
        leave_out: int = 0,
        key: str = "",
        on_progress: Progress | None = None,
    ) -> Import:
        """As `push` does, without waiting: the server goes on by itself."""
        file = Path(path)
        _check(file)
        mapping: dict[str, Any] = {
            "name": name,
            "prompt": prompt,
            "answer": answer,
            "columns": None if columns is None else [*columns],
            "leave_out": leave_out,
        }
        number = self._id_of(dataset)
        try:
            return self._upload(file, mapping, number, key, on_progress)
        except Refused as error:
            raise error.reworded({"send dataset_id: ": "pass dataset="}) from None

    def _upload(
        self,
        file: Path,
        mapping: dict[str, Any],
        number: int | None,
        key: str,
        on_progress: Progress | None,
    ) -> Import:
        if file.stat().st_size > AT_ONCE_BYTES:
            asker = self._asker
            sent = send_in_parts(
                asker, file, dataset_id=number, on_progress=on_progress
            )
            return _import(
                asker.post(f"/dataset-uploads/{sent}/import", mapping, key=key)
            )
        return self._send_at_once(file, mapping, number, key, on_progress)

    def _send_at_once(
        self,
        file: Path,
        mapping: dict[str, Any],
        dataset_id: int | None,
        key: str,
        on_progress: Progress | None,
    ) -> Import:
        columns = mapping.pop("columns") or ()
        fields = mapping | {"dataset_id": dataset_id}
        given = [(name, str(one)) for name, one in fields.items() if one is not None]
        given += [("columns", column) for column in columns]
        form = Form(file, given, on_progress)
        headers = headers_of(key or str(uuid.uuid4()))
        server = self._asker.server
        return _import(
            self._asker.patience.ask(lambda: upload(server, "/imports", form, headers))
        )

    def _id_of(self, dataset: str | int | Dataset | None) -> int | None:
        if isinstance(dataset, str):
            return int(dataset) if dataset.isdecimal() else self._named(dataset).id
        return dataset.id if isinstance(dataset, Dataset) else dataset

    def wait(
        self, job: Import, *, on_progress: Progress | None = None
    ) -> DatasetVersion:
        """Until the file is a version; ValueError says why it is none."""
        while job.state in UNDER_WAY:
            time.sleep(LOOK_SECONDS)
            job = _import(self._asker.get(f"/imports/{job.id}"))
            if on_progress and job.unit == "bytes":
                on_progress(job.done, job.total)
        if job.version is None:
            raise ValueError(f"{job.filename} was not imported. {_why(job)}")
        return job.version


def split_reference(text: str) -> tuple[str, int | None]:
    """
    >>> split_reference("sums@2"), split_reference("a@b")
    (('sums', 2), ('a@b', None))
    """
    name, at, number = text.rpartition("@")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    return (name, int(number)) if at and is_number else (text, None)


def _check(file: Path) -> None:
    if not file.is_file():
        is_there = "is not a file" if file.exists() else "does not exist"
        raise ValueError(f"{file} {is_there}. Name a file of rows, such as sums.jsonl.")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty. A dataset has at least one row.")


def _version(tree: Any) -> DatasetVersion:
    return read(DatasetVersion, tree)


def _import(tree: Any) -> Import:
    version = tree["version"]
    return read(Import, tree, version=_version(version) if version else None)


def _why(job: Import) -> str:
    if num := job.refusals.get("count", 0):
        return f"{num:,} rows have errors; leave_out={num} imports the others."
    return job.error
