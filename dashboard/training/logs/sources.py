"""One log, or the trainer's and its supervisor's together, searched and sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dashboard.training.logs.search import MAX_LISTED, search
from dashboard.training.logs.source import Source

PIECE_BYTES = 64 * 1024


def search_source(source: Source, pattern: Any, *, first: int = 0) -> dict[str, Any]:
    """FileNotFoundError where a single log is not here."""
    if source.name != "both":
        return asdict(search(source.path, pattern, first=first))
    paths = (source.files.trainer_log, source.files.supervisor_log)
    return _search_both(paths, pattern, first)


def _search_both(paths: Sequence[Path], pattern: Any, first: int) -> dict[str, Any]:
    """The trainer's lines that match, and behind them the worker's."""
    matches: list[dict[str, Any]] = []
    total, stopped = 0, ""
    for name, path in zip(("trainer", "supervisor"), paths, strict=True):
        if not path.is_file():
            continue
        found = search(path, pattern, first=max(0, first - total))
        room = MAX_LISTED - len(matches)
        told = [{**asdict(m), "source": name} for m in found.matches[:room]]
        matches += told
        total, stopped = total + found.total, stopped or found.stopped
    return {"matches": matches, "first": first, "total": total, "stopped": stopped}


def pieces_of(source: Source) -> Iterator[bytes]:
    """Each read once it is wanted: under ASGI, FileResponse reads all at once."""
    with source.path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
