"""Several files of one split, as one file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from dashboard.datasets.fetching.request import NotFetched
from dashboard.datasets.limits import MAX_UNPACKED_BYTES
from dashboard.project.subprocesses import BrokeOff, ask

PROCESS = "dashboard.datasets.fetching.joining_process"
BUFFER_BYTES = 2**20


def join(parts: list[Path], whole: Path, *, on_wait: Callable[[], None]) -> None:
    """The parts go, once they are in the whole. Raises NotFetched."""
    if len(parts) == 1:
        parts[0].replace(whole)
        return
    draft = whole.with_name(f"{whole.name}.joined")
    try:
        is_parquet = _begins(parts[0]) == b"PAR1"
        (_join_parquet if is_parquet else _join_lines)(parts, draft, on_wait)
        draft.replace(whole)
    finally:
        draft.unlink(missing_ok=True)
    for part in parts:
        part.unlink(missing_ok=True)


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def _join_lines(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    with draft.open("wb") as joined:
        for part in parts:
            on_wait()
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, BUFFER_BYTES)
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        joined.write(b"\n")


def _join_parquet(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    try:
        for problem in ask(PROCESS, parts, draft, MAX_UNPACKED_BYTES):
            if problem:
                raise NotFetched(problem)
            on_wait()
    except BrokeOff as error:
        raise NotFetched(
            f"The files of this split cannot be joined to one Parquet file: {error}. "
            "One of them is damaged. Take its files one by one."
        ) from None
