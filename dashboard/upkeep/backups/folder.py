"""Which files of the data folder a backup holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Servers, what they print, what is made anew; files as their names begin.
NOT_KEPT = ("postgres", "postgres.new", "sockets", "logs", "cache", "tokens")
NOT_KEPT_FILES = ("up.lock", "beat-schedule", "bench", "last-backup", ".")
KEY_FILE = "secret-key"
CHECKPOINTS = ("checkpoints", "kept")  # in runs/<id>


def _kept_entries(data: Path) -> list[Path]:
    if not data.is_dir():
        return []
    return sorted(
        path
        for path in data.iterdir()
        if path.name not in NOT_KEPT and not path.name.startswith(NOT_KEPT_FILES)
    )


def kept_files(data: Path, *, with_checkpoints: bool) -> Iterator[tuple[str, Path]]:
    """Each file with its name in the backup: "runs/3/run.json"."""
    for entry in _kept_entries(data):
        for path in _files_of(entry):
            name = path.relative_to(data)
            if with_checkpoints or not _is_checkpoint(name):
                yield name.as_posix(), path


def _files_of(entry: Path) -> Iterator[Path]:
    """A folder of the data folder may be a link to another disk; no file within is."""
    if entry.is_file():
        yield entry
        return
    for path in sorted(entry.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _is_checkpoint(name: Path) -> bool:
    parts = name.parts
    return len(parts) > 3 and parts[0] == "runs" and parts[2] in CHECKPOINTS
