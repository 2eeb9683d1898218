"""A run's checkpoints as files: those of the trainer, and kept ones.

The trainer owns `checkpoints` and deletes all but the newest there. Checkpoints to keep
are hard-linked into `kept`, which takes no disk space.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from dashboard.datasets.limits import check_disk_space
from dashboard.project.errors import UserError
from dashboard.runs.queries import run_directory
from trainer.disk import open_inside

BLOCK_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"

MODEL = "model"  # the part of a checkpoint that needs nothing else


class Damaged(UserError):
    """A checkpoint that no run may continue from; the message has the reason."""

    def __init__(self, message: str) -> None:
        super().__init__("checkpoints.damaged", message)


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """The files of a checkpoint with their hashes; the trainer writes it last."""

    model_config = ConfigDict(extra="ignore")

    files: dict[str, ManifestFile]


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """Read the manifest and its SHA-256, which the run's event log records."""
    try:
        data = (path / MANIFEST).read_bytes()
        manifest = Manifest.model_validate_json(data)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: failed to read the manifest: {error}") from error
    return manifest, hashlib.sha256(data).hexdigest()


def verify_file(
    path: Path, name: str, expected: ManifestFile, on_progress: Callable[[], None]
) -> None:
    """Raise Damaged if the hash of a file differs from the manifest."""
    digest = hashlib.sha256()
    try:
        with open_file(path, name) as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
                on_progress()
    except OSError as error:
        raise Damaged(f"{path.name}: failed to read {name}: {error}") from error
    check_digest(path, name, expected, digest.hexdigest())


def check_digest(path: Path, name: str, expected: ManifestFile, found: str) -> None:
    if found != expected.sha256:
        raise Damaged(
            f"{path.name}: {name} has SHA-256 {found[:12]}…; expected "
            f"{expected.sha256[:12]}…."
        )


def open_file(path: Path, name: str) -> BinaryIO:
    """Open a regular file within the checkpoint; links out of it are refused."""
    try:
        return open_inside(path, name)
    except ValueError as error:
        raise Damaged(f"{path.name}: {error}") from None


class FilesGone(UserError):
    """The files of a checkpoint were deleted."""

    def __init__(self, message: str) -> None:
        super().__init__("checkpoints.files_deleted", message)


class CheckpointStore:
    """The folders of one run's checkpoints."""

    def __init__(self, run_id: int) -> None:
        self.own = run_directory(run_id).checkpoints
        self.kept = run_directory(run_id).path / "kept"

    @property
    def is_seen(self) -> bool:
        """Tell whether this process can read the run's files."""
        return self.own.parent.is_dir()

    def find(self, name: str) -> Path | None:
        """Find the folder of a checkpoint; None if deleted."""
        return next(self._folders(name), None)

    def names(self) -> set[str]:
        """List the names of all checkpoints with files."""
        names_kept: set[str] = set()
        for folder in (self.own, self.kept):
            if folder.is_dir():
                names_kept |= {path.name for path in folder.glob("step-*")}
                names_kept |= {
                    path.name.removeprefix("superseded-").rpartition("-")[0]
                    for path in folder.glob("superseded-step-*")
                }
        return names_kept

    def kept_names(self) -> set[str]:
        return {path.name for path in self.kept.glob("step-*")}

    def keep(self, name: str) -> None:
        """Link it into `kept`, so that it outlives the trainer's cleanup.

        Raises:
            FilesGone: the trainer has deleted it.
            Damaged: the manifest is unreadable.
            OSError: the disk does not support links.
        """
        if (self.kept / name).is_dir():
            return
        source = self.find(name)
        if source is None:
            raise FilesGone(gone(name))
        manifest, _ = read_manifest(source)
        link_files(source, self.kept / name, [*manifest.files, MANIFEST])

    def release(self, name: str) -> None:
        """Unlink it from `kept`."""
        discard(self.kept / name)

    def remove(self, name: str) -> None:
        """Delete it from both folders."""
        for path in list(self._folders(name)):
            discard(path)

    def _folders(self, name: str) -> Iterator[Path]:
        # renamed by a resume that went back before it
        aside = sorted(self.own.glob(f"superseded-{name}-*"))
        return (
            path
            # kept ones first: they stay while they are read
            for path in (self.kept / name, self.own / name, *aside)
            if path.is_dir()
        )


def link_files(
    source: Path,
    target: Path,
    names: Iterable[str],
    *,
    link: Callable[[str, str], object] = os.link,
) -> None:
    """Link files of a checkpoint into another folder, all or none.

    Raises:
        FilesGone: they were deleted meanwhile.
        Damaged: a name leads out of the checkpoint.
        OSError: the disk does not support links.
    """
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        for name in names:
            open_file(source, name).close()
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            link(str(source / name), str(unfinished / name))
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    except FileNotFoundError as error:
        raise FilesGone(gone(source.name)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def link_or_copy(
    source: str,
    target: str,
    *,
    purpose: str,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Raises ValueError if the disk has no space for a copy."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # two disks, or no support for links
        check_disk_space(Path(source).stat().st_size, purpose=purpose)
        with open(source, "rb") as file, open(target, "wb") as copy:
            while block := file.read(BLOCK_BYTES):
                copy.write(block)
                on_progress()


def discard(path: Path) -> None:
    """Rename, then delete, so that no reader finds a partial checkpoint."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}.discarded")
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def gone(name: str) -> str:
    return (
        f"The run deleted the files of {name}: it keeps only its newest checkpoints. "
        "Choose a newer one."
    )
