"""Checkpoints on disk, checked against their manifests without torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

BLOCK_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d+)-epoch-(\d+)")


class Damaged(ValueError):
    """A checkpoint that must not be resumed from; the message says what is wrong."""


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What the trainer writes last: each file of the checkpoint and its hash."""

    model_config = ConfigDict(extra="ignore")

    files: dict[str, ManifestFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    path: Path
    step: int
    epoch: int
    sha256: str  # of its manifest
    num_bytes: int


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders named as checkpoints, furthest first; a torn save has another name."""
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
) -> SavedCheckpoint | None:
    """The furthest checkpoint of our history whose every byte is as it was written."""
    for path in list_checkpoints(folder):
        try:
            checkpoint = verify(path, on_progress=on_progress)
        except Damaged as error:
            on_refused(str(error))
            continue
        if is_ours(checkpoint):
            return checkpoint
        on_refused(f"{path.name}: it was saved by a life that was over by then.")
    return None


def verify(path: Path, *, on_progress: Callable[[], None]) -> SavedCheckpoint:
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    manifest, sha256 = _read_manifest(path)
    for name, expected in manifest.files.items():
        _verify_file(path, name, expected, on_progress)
    return SavedCheckpoint(
        path=path,
        step=int(match[1]),
        epoch=int(match[2]),
        sha256=sha256,
        num_bytes=sum(file.bytes for file in manifest.files.values()),
    )


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(data)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: its manifest cannot be read: {error}") from error
    return manifest, hashlib.sha256(data).hexdigest()


def _verify_file(
    path: Path, name: str, expected: ManifestFile, on_progress: Callable[[], None]
) -> None:
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        raise Damaged(f"{path.name}: its manifest names {name!r}, outside of it.")
    try:
        found = _sha256(file, on_progress)
    except OSError as error:
        raise Damaged(f"{path.name}: {name} cannot be read: {error}") from error
    if found != expected.sha256:
        raise Damaged(
            f"{path.name}: {name} has SHA-256 {found[:12]}…, but was written with "
            f"{expected.sha256[:12]}…."
        )


def _sha256(path: Path, on_progress: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            on_progress()
    return digest.hexdigest()
