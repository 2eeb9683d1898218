"""A run's checkpoints as files: those of the trainer, and those that are kept.

The trainer alone decides what stays in `checkpoints`, where it deletes all but the
newest. What shall outlive that lies in `kept` as well, by links to the same files: they
take no room of their own, and nothing that the trainer deletes is lost to them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from dashboard.datasets.limits import check_room
from dashboard.runs.checkpoints.manifest import (
    BLOCK_BYTES,
    MANIFEST,
    open_file,
    read_manifest,
)
from dashboard.runs.directory import run_directory

MODEL = "model"  # the part of a checkpoint that needs nothing else


class FilesGone(ValueError):
    """The text is for the user."""


class Shelf:
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
    """ValueError, where there is no room for the copy that `purpose` names."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # two disks, or one that knows no links
        check_room(Path(source).stat().st_size, purpose=purpose)
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
        f"The files of {name} are no longer there: the run deletes its older "
        "checkpoints. Take a newer one."
    )
