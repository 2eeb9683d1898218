"""A dataset version as the file a run reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row import Row, write_content

AT_ONCE = 2_000  # rows


def write_rows(
    version: DatasetVersion,
    path: Path,
    *,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Write the rows as JSON lines, whole or not at all.

    The hash of the file is the version's `content_sha256`. `on_progress` is called
    with each row.
    """
    with _whole_or_not_at_all(path) as file:
        stored = version.rows.order_by("position").iterator(chunk_size=AT_ONCE)
        content = write_content(_each(stored, on_progress), file)
        if content.sha256 != version.content_sha256:
            raise ValueError(
                f"{version} has {content.num_rows} rows with hash "
                f"{content.sha256[:12]} in the database, but was imported with "
                f"{version.num_rows} rows and hash {version.content_sha256[:12]}. "
                "Import it again as a new version."
            )


def write_some_rows(
    version: DatasetVersion,
    path: Path,
    *,
    max_rows: int,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Write so many of the rows, or all where there are no more, in their order.

    Which ones follows from the version alone, so that runs can be compared.
    """
    if max_rows >= version.num_rows:
        write_rows(version, path, on_progress=on_progress)
        return
    drawn = draw_rows(version, max_rows)
    with _whole_or_not_at_all(path) as file:
        content = write_content(_each(_read(version, drawn), on_progress), file)
        if content.num_rows != max_rows:
            raise ValueError(
                f"{version} lacks {max_rows - content.num_rows} of {max_rows} rows in "
                "the database. Import it again as a new version."
            )


def draw_rows(version: DatasetVersion, count: int) -> list[int]:
    """So many positions, drawn by the hash of the version's content."""
    by_content = random.Random(version.content_sha256)  # noqa: S311 - a repeatable choice, no secret
    return sorted(by_content.sample(range(version.num_rows), count))


def _read(version: DatasetVersion, positions: list[int]) -> Iterator[DatasetRow]:
    for start in range(0, len(positions), AT_ONCE):
        some = version.rows.filter(position__in=positions[start : start + AT_ONCE])
        yield from some.order_by("position")


def _each(
    stored: Iterable[DatasetRow], on_progress: Callable[[], None]
) -> Iterator[Row]:
    for row in stored:
        on_progress()
        yield row.as_row()


@contextmanager
def _whole_or_not_at_all(path: Path) -> Iterator[IO[bytes]]:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
