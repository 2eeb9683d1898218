"""Checkpoints on disk, checked against their manifests without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

BLOCK_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"


class Damaged(ValueError):
    """A checkpoint that must not be resumed from; the message says what is wrong."""


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha256: str
    num_bytes: int


class Manifest(BaseModel):
    """What we need of it; the trainer writes more."""

    model_config = ConfigDict(extra="ignore")

    step: int
    epoch: int
    files: dict[str, ManifestFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    path: Path
    step: int
    epoch: int
    sha256: str  # of its manifest
    num_bytes: int


def list_checkpoints(folder: Path) -> list[Path]:
    """Folders that bear a manifest, in no order; a torn save has none."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if (path / MANIFEST).is_file()]


def newest_verified(
    folder: Path,
    *,
    on_damaged: Callable[[str], None],
    on_progress: Callable[[], None],
) -> SavedCheckpoint | None:
    """The furthest checkpoint whose every byte is as it was written."""
    candidates = []
    for path in list_checkpoints(folder):
        try:
            manifest, sha256 = read_manifest(path)
        except Damaged as error:
            on_damaged(str(error))
        else:
            candidates.append((manifest.step, manifest.epoch, path, manifest, sha256))
    candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
    for _, _, path, manifest, sha256 in candidates:
        try:
            verify(path, manifest, on_progress=on_progress)
        except Damaged as error:
            on_damaged(str(error))
            continue
        return SavedCheckpoint(
            path=path,
            step=manifest.step,
            epoch=manifest.epoch,
            sha256=sha256,
            num_bytes=sum(file.num_bytes for file in manifest.files.values()),
        )
    return None


def read_manifest(path: Path) -> tuple[Manifest, str]:
    try:
        data = (path / MANIFEST).read_bytes()
        return Manifest.model_validate(json.loads(data)), hashlib.sha256(
            data
        ).hexdigest()
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: its manifest cannot be read: {error}") from error


def verify(path: Path, manifest: Manifest, *, on_progress: Callable[[], None]) -> None:
    for name, expected in manifest.files.items():
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
