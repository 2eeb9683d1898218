"""A run's checkpoints as files: those of the trainer, and those that are kept.

The trainer alone decides what stays in `checkpoints`, where it deletes all but the
newest. What shall outlive that lies in `kept` as well, by links to the same files: they
take no disk space of their own, and nothing that the trainer deletes is lost to them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from dashboard.datasets.limits import check_disk_space
from dashboard.runs.queries import run_directory

BLOCK_BYTES = 8 * 1024 * 1024
MANIFEST = "manifest.json"

MODEL = "model"  # the part of a checkpoint that needs nothing else


class Damaged(ValueError):
    """A checkpoint that must not be gone on from; the message says what is wrong."""


class ManifestFile(BaseModel):
    model_config = ConfigDict(extra="ignore")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What the trainer writes last: each file of the checkpoint, and its hash."""

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


class FilesGone(ValueError):
    """The text is for the user."""


class CheckpointStore:
    """The folders of one run's checkpoints."""

    def __init__(self, run_id: int) -> None:
        self.own = run_directory(run_id).checkpoints
        self.kept = run_directory(run_id).path / "kept"

    @property
    def is_seen(self) -> bool:
        """Whether the run's files lie where this process can look."""
        return self.own.parent.is_dir()

    def find(self, name: str) -> Path | None:
        """The folder of a checkpoint; None when it is no longer there."""
        return next(self._places(name), None)

    def names(self) -> set[str]:
        """All that are there."""
        found: set[str] = set()
        for folder in (self.own, self.kept):
            if folder.is_dir():
                found |= {path.name for path in folder.glob("step-*")}
                found |= {
                    path.name.removeprefix("superseded-").rpartition("-")[0]
                    for path in folder.glob("superseded-step-*")
                }
        return found

    def kept_names(self) -> set[str]:
        return {path.name for path in self.kept.glob("step-*")}

    def keep(self, name: str) -> None:
        """Have it outlive what the trainer deletes.

        Raises:
            FilesGone: the trainer was faster.
            Damaged: its manifest cannot be read.
            OSError: the disk knows no links.
        """
        if (self.kept / name).is_dir():
            return
        source = self.find(name)
        if source is None:
            raise FilesGone(gone(name))
        manifest, _ = read_manifest(source)
        link_files(source, self.kept / name, [*manifest.files, MANIFEST])

    def let_go(self, name: str) -> None:
        """Leave it to the trainer again."""
        discard(self.kept / name)

    def remove(self, name: str) -> None:
        """Delete it here and there."""
        for path in list(self._places(name)):
            discard(path)

    def _places(self, name: str) -> Iterator[Path]:
        # a run that went back before it has set it aside
        aside = sorted(self.own.glob(f"superseded-{name}-*"))
        return (
            path
            # what is kept first: it stays while somebody reads it
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
    """Files of a checkpoint under another folder too, whole or not at all.

    Raises:
        FilesGone: somebody deleted them meanwhile.
        Damaged: a name leads out of the checkpoint.
        OSError: the disk knows no links.
    """
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        for name in names:
            open_file(source, name).close()
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            link(str(source / name), str(unfinished / name))
        _settle(unfinished, target)
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
    """ValueError, where there is no disk space for the copy that `purpose` names."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # two disks, or one that knows no links
        check_disk_space(Path(source).stat().st_size, purpose=purpose)
        with open(source, "rb") as file, open(target, "wb") as copy:
            while block := file.read(BLOCK_BYTES):
                copy.write(block)
                on_progress()


def _settle(unfinished: Path, target: Path) -> None:
    try:
        unfinished.rename(target)
    except OSError:
        if not target.is_dir():  # else somebody else has just done the same
            raise


def discard(path: Path) -> None:
    """Out of sight at once, then deleted: nobody finds half of it."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}.discarded")
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def gone(name: str) -> str:
    return (
        f"The files of {name} were deleted: the run keeps only its newest checkpoints. "
        "Choose a newer one."
    )
