"""Checkpoints on disk: checked against their manifests, and a model sent as a tar."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dashboard.runs.checkpoints.files import (
    MODEL,
    Damaged,
    Manifest,
    ManifestFile,
    check_digest,
    open_file,
    read_manifest,
    verify_file,
)
from dashboard.runs.models import Checkpoint

PIECE_BYTES = 1024 * 1024
BLOCK = tarfile.BLOCKSIZE
NAME = re.compile(r"step-(\d+)-(?:attempt|epoch)-(\d+)")


def model_files(manifest: Manifest) -> dict[str, ManifestFile]:
    """List the files of the model, which needs nothing else of its checkpoint."""
    return {
        name: file
        for name, file in sorted(manifest.files.items())
        if name.startswith(f"{MODEL}/")
    }


def read_known(path: Path, checkpoint: Checkpoint) -> Manifest:
    """Damaged, if the manifest differs from the one in the run's log."""
    manifest, sha256 = read_manifest(path)
    if sha256 != checkpoint.sha256:
        raise Damaged(
            f"{path.name}: the manifest has SHA-256 {sha256[:12]}…, expected "
            f"{checkpoint.sha256[:12]}…."
        )
    return manifest


class ModelArchive:
    """A tar file of the model's folder, piece by piece.

    Its files are opened first, so deleting them does not interrupt the download. If a
    file differs from what was saved, the download aborts before its end, so that no one
    gets a model that only looks complete.
    """

    def __init__(self, path: Path, checkpoint: Checkpoint, *, folder: str) -> None:
        """
        Args:
            path: of the checkpoint.
            checkpoint: as the run's log names it.
            folder: what unpacking makes.

        Raises:
            Damaged: as far as can be seen without reading all of it.
        """
        self._path = path
        self._folder = folder
        self._files = model_files(read_known(path, checkpoint))
        self._opened: dict[str, BinaryIO] = {}
        self._time = int(checkpoint.saved_at.timestamp())
        with ExitStack() as stack:
            for name in self._files:
                self._opened[name] = stack.enter_context(self._open(name))
            self._closing = stack.pop_all()

    @property
    def filename(self) -> str:
        return f"{self._folder}.tar"

    def __len__(self) -> int:
        """Bytes."""
        return 2 * BLOCK + sum(
            len(self._header(name)) + file.bytes + _padding(file.bytes)
            for name, file in self._files.items()
        )

    def __iter__(self) -> Iterator[bytes]:
        for name, file in self._files.items():
            yield self._header(name)
            digest, last = hashlib.sha256(), b""
            while piece := self._opened[name].read(PIECE_BYTES):
                digest.update(piece)
                yield last
                last = piece
            # The last piece goes out only once the whole file is known to be right.
            check_digest(self._path, name, file, digest.hexdigest())
            yield last
            yield bytes(_padding(file.bytes))
        yield bytes(2 * BLOCK)

    def close(self) -> None:
        self._closing.close()

    def _open(self, name: str) -> BinaryIO:
        try:
            opened = open_file(self._path, name)
        except OSError as error:
            raise Damaged(f"{self._path.name}: {name} cannot be read.") from error
        size, expected = opened.seek(0, 2), self._files[name].bytes
        opened.seek(0)
        if size != expected:
            opened.close()
            raise Damaged(
                f"{self._path.name}: {name} has {size:,} bytes, expected {expected:,}."
            )
        return opened

    def _header(self, name: str) -> bytes:
        info = tarfile.TarInfo(f"{self._folder}/{name.removeprefix(f'{MODEL}/')}")
        info.size, info.mtime = self._files[name].bytes, self._time
        return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    path: Path
    step: int
    attempt: int
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
    """Find the furthest checkpoint of our history whose bytes are all intact."""
    for path in checkpoint_folders(folder):
        try:
            checkpoint = verify(path, on_progress=on_progress)
        except Damaged as error:
            on_refused(str(error))
            on_damaged(str(error))
            continue
        if is_ours(checkpoint):
            return checkpoint
        on_refused(f"{path.name}: saved by an attempt that had already ended.")
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
        attempt=int(match[2]),
        sha256=sha256,
        num_bytes=sum(file.bytes for file in manifest.files.values()),
    )
