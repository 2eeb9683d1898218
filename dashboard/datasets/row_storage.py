"""Rows of a version: copied in the database, written to a file, staged for COPY."""

from __future__ import annotations

import hashlib
import json
import os
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from django.db import connection

from dashboard.datasets.limits import (
    COPY_BYTES,
    check_disk_space,
    check_disk_space_to_store,
)
from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row import (
    Row,
    columns_as_json,
    prompt_as_json,
    read_answer,
    stored_answer,
    write_content,
)
from dashboard.project.database import fetch_all
from dashboard.project.errors import UserError

ROWS_AT_ONCE = 2_000
COPIED_AT_ONCE = 10_000
READ_AT_ONCE = 100  # of which each may hold 8 MiB
FIELDS = (
    "version_id",
    "position",
    "prompt",
    "is_chat",
    "answer",
    "answer_is_list",
    "columns",
)
# What COPY's text format takes for an escape, or for the end of a row or a field.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_COPY = """
INSERT INTO datasets_datasetrow
       (version_id, position, prompt, is_chat, answer, answer_is_list, columns)
SELECT %s, %s + chosen.ordinal - 1, row.prompt, row.is_chat, row.answer,
       row.answer_is_list, row.columns
  FROM unnest(%s::int[]) WITH ORDINALITY AS chosen(position, ordinal)
  JOIN datasets_datasetrow row ON row.version_id = %s
   AND row.position = chosen.position
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedRows:
    """Positions of the parent's rows, in the new order.

    The rows are read once for the hash, then copied inside the database, so memory
    holds one chunk of rows and four bytes for each row.
    """

    parent: DatasetVersion
    positions: array[int]
    sha256: str
    num_bytes: int  # of the rows as JSON

    @property
    def num_rows(self) -> int:
        return len(self.positions)

    def store(self, version_id: int) -> Iterator[int]:
        """Copy them, chunk by chunk; how many are stored so far."""
        for start in range(0, self.num_rows, COPIED_AT_ONCE):
            part = list(self.positions[start : start + COPIED_AT_ONCE])
            with connection.cursor() as cursor:
                cursor.execute(_COPY, [version_id, start, part, self.parent.pk])
                if cursor.rowcount != len(part):
                    raise UserError("datasets.rows_missing", _rows_missing(self.parent))
            yield start + len(part)


def select_rows(
    parent: DatasetVersion,
    chunks: Iterable[tuple[Sequence[int], int]],
    *,
    on_read: Callable[[int, int], object],
) -> SelectedRows:
    """Read the rows at these positions. Each chunk has the number of rows searched.

    ValueError where a row is not in the database.
    """
    positions, digest, num_bytes = array("I"), hashlib.sha256(), 0
    for chunk, num_looked in chunks:
        for start in range(0, len(chunk), READ_AT_ONCE):
            for row in _read(parent, chunk[start : start + READ_AT_ONCE]):
                line = row.canonical().encode() + b"\n"
                digest.update(line)
                num_bytes += len(line)
        positions.extend(chunk)
        on_read(num_looked, parent.num_rows)
    return SelectedRows(
        parent=parent,
        positions=positions,
        sha256=digest.hexdigest(),
        num_bytes=num_bytes,
    )


def _rows_missing(parent: DatasetVersion) -> str:
    """Rows were deleted with their dataset or directly in the database."""
    return f"The database lacks rows of {parent}. Import it again as a new version."


def _read(parent: DatasetVersion, positions: Sequence[int]) -> Iterator[Row]:
    rows = fetch_all(
        "SELECT position, prompt, is_chat, answer, answer_is_list, columns::text"
        " FROM datasets_datasetrow"
        " WHERE version_id = %s AND position = ANY(%s)",
        [parent.pk, list(positions)],
    )
    by_position = {position: values for position, *values in rows}
    if len(by_position) != len(positions):
        raise UserError("datasets.rows_missing", _rows_missing(parent))
    for position in positions:
        prompt, is_chat, answer, is_list, columns = by_position[position]
        yield Row(
            prompt=json.loads(prompt) if is_chat else prompt,
            answer=read_answer(answer, is_list=is_list),
            columns=json.loads(columns),
        )


def write_rows(
    version: DatasetVersion,
    path: Path,
    *,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Write the rows as JSON Lines, atomically; `on_progress` is called for each row.

    The hash of the file is the version's `content_sha256`.
    """
    with _atomic_file(path) as file:
        stored = version.rows.order_by("position").iterator(chunk_size=ROWS_AT_ONCE)
        content = write_content(_as_rows(stored, on_progress), file)
        if content.sha256 != version.content_sha256:
            raise UserError(
                "datasets.rows_missing",
                f"{version} has {content.num_rows} rows with hash "
                f"{content.sha256[:12]} in the database, but was imported with "
                f"{version.num_rows} rows and hash {version.content_sha256[:12]}. "
                "Import it again as a new version.",
            )


def write_some_rows(
    version: DatasetVersion,
    path: Path,
    *,
    max_rows: int,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Write at most `max_rows` rows, in their order.

    The sample depends only on the version, so that runs can be compared.
    """
    if max_rows >= version.num_rows:
        write_rows(version, path, on_progress=on_progress)
        return
    drawn = draw_rows(version, max_rows)
    stored = chain.from_iterable(
        version.rows.filter(position__in=drawn[start : start + ROWS_AT_ONCE]).order_by(
            "position"
        )
        for start in range(0, max_rows, ROWS_AT_ONCE)
    )
    with _atomic_file(path) as file:
        content = write_content(_as_rows(stored, on_progress), file)
        if content.num_rows != max_rows:
            raise UserError(
                "datasets.rows_missing",
                f"The database lacks {max_rows - content.num_rows} of {max_rows} rows "
                f"of {version}. Import it again as a new version.",
            )


def draw_rows(version: DatasetVersion, count: int) -> list[int]:
    """`count` positions, sampled with the content's hash as seed."""
    by_content = random.Random(version.content_sha256)  # noqa: S311 - a repeatable choice, no secret
    return sorted(by_content.sample(range(version.num_rows), count))


def _as_rows(
    stored: Iterable[DatasetRow], on_progress: Callable[[], None]
) -> Iterator[Row]:
    for row in stored:
        on_progress()
        yield row.as_row()


@contextmanager
def _atomic_file(path: Path) -> Iterator[IO[bytes]]:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class StagedRows:
    """Rows on disk, until all of them are valid.

    The file has the fields of COPY without the version's key and the position, so no
    transaction is open while rows are read. `sha256` is that of `write_content`.
    """

    def __init__(self, file: IO[bytes], rows: Iterable[Row] = ()) -> None:
        self.num_rows = 0
        self._file = file
        self._digest = hashlib.sha256()
        for row in rows:
            self.add(row)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def add(self, row: Row) -> None:
        columns, prompt = columns_as_json(row.columns), prompt_as_json(row.prompt)
        self._digest.update(row.canonical(columns, prompt).encode() + b"\n")
        if not self.num_rows % ROWS_AT_ONCE:
            check_disk_space(COPY_BYTES, purpose="the dataset")
        text, is_chat = (
            (row.prompt, "f") if isinstance(row.prompt, str) else (prompt, "t")
        )
        text, stored = _escaped(text), stored_answer(row.answer)
        answer = "\\N" if stored is None else _escaped(stored)
        is_list = "t" if isinstance(row.answer, list) else "f"
        line = f"{text}\t{is_chat}\t{answer}\t{is_list}\t{_escaped(columns)}\n"
        self._file.write(line.encode())
        self.num_rows += 1

    def store(self, version_id: int) -> Iterator[int]:
        """COPY them, a few megabytes at a time; how many are stored so far."""
        statement = f"COPY {DatasetRow._meta.db_table} ({', '.join(FIELDS)}) FROM STDIN"
        self._file.seek(0)
        position = 0
        while lines := self._file.readlines(COPY_BYTES):
            check_disk_space_to_store(COPY_BYTES, purpose="the dataset")
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for index, line in enumerate(lines):
                    copy.write(b"%d\t%d\t%s" % (version_id, position + index, line))
            position += len(lines)
            yield position


def _escaped(text: str) -> str:
    # Ten times as fast as str.translate.
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text
