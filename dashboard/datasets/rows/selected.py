"""Rows of a version that become another version's without leaving the database.

They are read once, for the hash, and then copied by their positions, so what is held
of them at a time is one chunk and four bytes a row.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.db import connection

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row

ROWS_AT_ONCE = 2_000
COPIED_AT_ONCE = 10_000
READ_AT_ONCE = 100  # of which each may hold 8 MiB
_COPY = """
INSERT INTO datasets_datasetrow
       (version_id, position, prompt, is_chat, answer, columns)
SELECT %s, %s + chosen.place - 1, row.prompt, row.is_chat, row.answer, row.columns
  FROM unnest(%s::int[]) WITH ORDINALITY AS chosen(position, place)
  JOIN datasets_datasetrow row ON row.version_id = %s
   AND row.position = chosen.position
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedRows:
    """`positions` are those of the parent's rows, in the new order."""

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
                    raise ValueError(_gone(self.parent))
            yield start + len(part)


def select_rows(
    parent: DatasetVersion,
    chunks: Iterable[tuple[Sequence[int], int]],
    *,
    on_read: Callable[[int, int], None] | None,
) -> SelectedRows:
    """Read the rows at these positions. Each chunk says how far the looking came.

    ValueError where a row is not in the database.
    """
    positions, digest, num_bytes = array("I"), hashlib.sha256(), 0
    for chunk, num_looked in chunks:
        for row in _read(parent, chunk):
            line = row.canonical().encode() + b"\n"
            digest.update(line)
            num_bytes += len(line)
        positions.extend(chunk)
        if on_read:
            on_read(num_looked, parent.num_rows)
    return SelectedRows(
        parent=parent,
        positions=positions,
        sha256=digest.hexdigest(),
        num_bytes=num_bytes,
    )


def _gone(parent: DatasetVersion) -> str:
    """Deleted for good meanwhile, or by whoever reached into the database."""
    return (
        f"{parent} lacks rows in the database that it was imported with. Import it "
        "again as a new version, unless somebody deleted it just now."
    )


def _read(parent: DatasetVersion, positions: Sequence[int]) -> Iterator[Row]:
    for start in range(0, len(positions), READ_AT_ONCE):
        yield from _read_some(parent, positions[start : start + READ_AT_ONCE])


def _read_some(parent: DatasetVersion, positions: Sequence[int]) -> Iterator[Row]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT position, prompt, is_chat, answer, columns::text"
            " FROM datasets_datasetrow"
            " WHERE version_id = %s AND position = ANY(%s)",
            [parent.pk, list(positions)],
        )
        found = {position: values for position, *values in cursor}
    if len(found) != len(positions):
        raise ValueError(_gone(parent))
    for position in positions:
        prompt, is_chat, answer, columns = found[position]
        yield Row(
            prompt=json.loads(prompt) if is_chat else prompt,
            answer=answer,
            columns=json.loads(columns),
        )
