"""A checkpoint's model as one file, sent while it is read and checked."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
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
)
from dashboard.runs.models import Checkpoint

PIECE_BYTES = 1024 * 1024
BLOCK = tarfile.BLOCKSIZE


def model_files(manifest: Manifest) -> dict[str, ManifestFile]:
    """Those of the model that needs nothing else of its checkpoint."""
    return {
        name: file
        for name, file in sorted(manifest.files.items())
        if name.startswith(f"{MODEL}/")
    }


def read_known(path: Path, checkpoint: Checkpoint) -> Manifest:
    """Damaged, where it is not the manifest that the run's log names."""
    manifest, sha256 = read_manifest(path)
    if sha256 != checkpoint.sha256:
        raise Damaged(
            f"{path.name}: its manifest has SHA-256 {sha256[:12]}…, but was saved with "
            f"{checkpoint.sha256[:12]}…."
        )
    return manifest


class ModelArchive:
    """A tar file of the model's folder, a piece at a time.

    Its files are open from the beginning, so whoever deletes them meanwhile takes
    nothing away. A file that is not what was saved breaks the sending off, before its
    end: nobody is left with a model that looks whole and is not.
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
            yield from self._contents(name, file)
            yield bytes(_padding(file.bytes))
        yield bytes(2 * BLOCK)

    def close(self) -> None:
        self._closing.close()

    def _open(self, name: str) -> BinaryIO:
        try:
            opened = open_file(self._path, name)
        except OSError as error:
            raise Damaged(f"{self._path.name}: {name} cannot be read.") from error
        found, wanted = opened.seek(0, 2), self._files[name].bytes
        opened.seek(0)
        if found != wanted:
            opened.close()
            raise Damaged(
                f"{self._path.name}: {name} has {found:,} bytes, but was written with "
                f"{wanted:,}."
            )
        return opened

    def _contents(self, name: str, file: ManifestFile) -> Iterator[bytes]:
        digest, held = hashlib.sha256(), b""
        while piece := self._opened[name].read(PIECE_BYTES):
            digest.update(piece)
            yield held
            held = piece
        # The last piece goes out only once the whole file is known to be right.
        check_digest(self._path, name, file, digest.hexdigest())
        yield held

    def _header(self, name: str) -> bytes:
        info = tarfile.TarInfo(f"{self._folder}/{name.removeprefix(f'{MODEL}/')}")
        info.size, info.mtime = self._files[name].bytes, self._time
        return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % BLOCK
