"""The checkpoint that a fork begins from, as its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from dashboard.runs.checkpoints.manifest import MANIFEST, Damaged, read_manifest
from dashboard.runs.checkpoints.shelf import (
    FilesGone,
    Shelf,
    gone,
    link_files,
    link_or_copy,
)
from dashboard.runs.directory import RunDirectory, run_directory
from dashboard.runs.models import Checkpoint, Run


def origin_name(step: int) -> str:
    """How a fork calls what it begins from: saved before its first life."""
    return f"step-{step:06d}-epoch-0"


def origin_of(run: Run, directory: RunDirectory) -> Path:
    """Where a fork keeps the checkpoint that it begins from."""
    assert run.fork_step is not None, "no fork"
    return directory.checkpoints / origin_name(run.fork_step)


def add_origin(run: Run, checkpoint: Checkpoint) -> None:
    """What a fork begins from is its own first checkpoint."""
    Checkpoint.objects.create(
        run=run,
        step=checkpoint.step,
        epoch=0,
        name=origin_name(checkpoint.step),
        sha256=checkpoint.sha256,
        num_bytes=checkpoint.num_bytes,
        saved_at=checkpoint.saved_at,
    )


def take_checkpoint(
    run_id: int,
    name: str,
    target: Path,
    *,
    sha256: str,
    on_progress: Callable[[], None] = lambda: None,
) -> None:
    """Make a checkpoint of this run this folder's too: by links, else by copies.

    Nobody writes into a checkpoint, so both runs may have one file. Once all are
    linked, whoever deletes the source takes nothing from us. ValueError: it is not
    there, or not what it was; nothing is left then.
    """
    source = Shelf(run_id).find(name)
    if source is None:
        raise FilesGone(gone(name))
    try:
        manifest, found = read_manifest(source)
    except Damaged as error:
        if not source.is_dir():  # it went between the two looks
            raise FilesGone(gone(name)) from error
        raise
    if found != sha256:
        raise ValueError(
            f"Checkpoint {name} is not what it was: its manifest has another SHA-256. "
            "Fork from another checkpoint."
        )
    link = partial(link_or_copy, purpose="forking this run", on_progress=on_progress)
    link_files(source, target, [*manifest.files, MANIFEST], link=link)


@contextmanager
def taken(checkpoint: Checkpoint) -> Iterator[Path | None]:
    """The directory of a fork to be, with its checkpoint; gone again unless moved.

    None where this machine does not see the parent's files: a worker that does takes
    them. Taken at once, they outlive whatever the parent deletes while the fork waits.
    """
    if not Shelf(checkpoint.run_id).is_seen:
        yield None
        return
    runs = run_directory(checkpoint.run_id).path.parent
    draft = RunDirectory(runs / f".fork-{uuid4().hex}")
    draft.checkpoints.mkdir(parents=True)
    try:
        target = draft.checkpoints / origin_name(checkpoint.step)
        name, sha256 = checkpoint.name, checkpoint.sha256
        take_checkpoint(checkpoint.run_id, name, target, sha256=sha256)
        yield draft.path
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
