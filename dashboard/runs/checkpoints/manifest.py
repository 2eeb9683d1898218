"""What the trainer writes last into a checkpoint: each of its files and its hash."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict

BLOCK_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"


class Damaged(ValueError):
    """A checkpoint that must not be gone on from; the message says what is wrong."""


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """Files by their names within the checkpoint."""

    model_config = ConfigDict(extra="ignore")

    files: dict[str, ManifestFile]


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """With its own SHA-256, which is what the run's log names."""
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(data)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: its manifest cannot be read: {error}") from error
    return manifest, hashlib.sha256(data).hexdigest()


def verify_file(
    path: Path, name: str, expected: ManifestFile, on_progress: Callable[[], None]
) -> None:
    """Damaged, where a file of the checkpoint is not what was written."""
    digest = hashlib.sha256()
    try:
        with open_file(path, name) as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
                on_progress()
    except OSError as error:
        raise Damaged(f"{path.name}: {name} cannot be read: {error}") from error
    check_digest(path, name, expected, digest.hexdigest())


def check_digest(path: Path, name: str, expected: ManifestFile, found: str) -> None:
    if found != expected.sha256:
        raise Damaged(
            f"{path.name}: {name} has SHA-256 {found[:12]}…, but was written with "
            f"{expected.sha256[:12]}…."
        )


def open_file(path: Path, name: str) -> BinaryIO:
    """A plain file within the checkpoint: nobody is led out of it by a link."""
    file = path / name
    try:
        is_inside = file.resolve().is_relative_to(path.resolve())
    except (ValueError, RuntimeError):  # a NUL in it; a link that leads to itself
        raise Damaged(
            f"{path.name}: its manifest names {name!r}, which is no file's name."
        ) from None
    if not is_inside:
        raise Damaged(f"{path.name}: its manifest names {name!r}, outside of it.")
    # A pipe would be waited for.
    opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise Damaged(f"{path.name}: {name!r} is no plain file.")
    return os.fdopen(opened, "rb")
