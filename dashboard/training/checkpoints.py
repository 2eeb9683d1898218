"""Checkpoints on disk, checked against their manifests without torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dashboard.runs.checkpoints.files import Damaged, read_manifest, verify_file

NAME = re.compile(r"step-(\d+)-epoch-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    path: Path
    step: int
    epoch: int
    sha256: str  # of its manifest
    num_bytes: int


def checkpoint_folders(folder: Path) -> list[Path]:
    """Furthest first; a torn save has another name."""
    if not folder.is_dir():
        return []
    named = [
        (int(match[1]), int(match[2]), path)
        for path in folder.iterdir()
        if (match := NAME.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(named, reverse=True)]


def newest_verified(
    folder: Path,
    *,
    is_ours: Callable[[SavedCheckpoint], bool],
    on_refused: Callable[[str], None],
    on_progress: Callable[[], None],
    on_damaged: Callable[[str], None] = lambda _reason: None,
) -> SavedCheckpoint | None:
    """The furthest checkpoint of our history whose every byte is as it was written."""
    for path in checkpoint_folders(folder):
        try:
            checkpoint = verify(path, on_progress=on_progress)
        except Damaged as error:
            on_refused(str(error))
            on_damaged(str(error))
            continue
        if is_ours(checkpoint):
            return checkpoint
        on_refused(f"{path.name}: it was saved by an attempt that was over by then.")
    return None


def verify(path: Path, *, on_progress: Callable[[], None]) -> SavedCheckpoint:
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    manifest, sha256 = read_manifest(path)
    for name, expected in manifest.files.items():
        verify_file(path, name, expected, on_progress)
    return SavedCheckpoint(
        path=path,
        step=int(match[1]),
        epoch=int(match[2]),
        sha256=sha256,
        num_bytes=sum(file.bytes for file in manifest.files.values()),
    )
