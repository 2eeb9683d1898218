"""Checkpoints as models that new runs start from."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.project.errors import UserError
from dashboard.runs.checkpoints.files import (
    CheckpointStore,
    FilesGone,
    discard,
    link_files,
    link_or_copy,
    verify_file,
)
from dashboard.runs.checkpoints.retention import unseen
from dashboard.runs.launch.base_models import folder_of, needs_of
from dashboard.runs.models import Checkpoint, PublishedModel, Run
from dashboard.supervision.checkpoints import ModelArchive, model_files, read_known

MOST = 200  # of a team
LINK = partial(link_or_copy, purpose="publishing this model")


def find_files(checkpoint: Checkpoint) -> Path:
    """Find the checkpoint's folder. FilesGone says where else it may be."""
    store = CheckpointStore(checkpoint.run_id)
    path = store.find(checkpoint.name)
    if path is None and not store.is_seen:
        raise FilesGone(unseen(checkpoint.run))
    if path is None:
        raise FilesGone(
            f"The files of {checkpoint.name} were deleted. Choose another checkpoint."
        )
    return path


def archive_model(checkpoint: Checkpoint) -> ModelArchive:
    """Pack the model's folder into one file.

    ValueError: its files were deleted or are damaged.
    """
    folder = name_archive(checkpoint.run, checkpoint.step)
    return ModelArchive(find_files(checkpoint), checkpoint, folder=folder)


def name_archive(run: Run, step: int) -> str:
    """Name the folder in a checkpoint's archive, and the archive without its suffix."""
    return f"{slugify(run.name) or 'run'}-{run.pk}-step-{step}"


def publish(*, checkpoint: Checkpoint, name: str, user: User) -> PublishedModel:
    """Copy the model's files to the team's published models, under a name.

    First checks them against the run's log. ValueError: a file or the name is invalid.
    """
    run = checkpoint.run
    name = " ".join(name.split())
    if not name or len(name) > 80 or not name.isprintable():
        raise UserError(
            "models.bad_name",
            f"A model name must have 1 to 80 printable characters; got {name[:90]!r}.",
        )
    if run.team.published_models.count() >= MOST:
        raise UserError(
            "models.too_many",
            f"{run.team} has {MOST} models, the maximum. Unpublish one first.",
        )
    source = find_files(checkpoint)
    files = model_files(read_known(source, checkpoint))
    if not files:
        raise UserError("models.no_model", f"{checkpoint.name} contains no model.")
    num_bytes = sum(file.bytes for file in files.values())
    draft = Path(settings.COHORT_DATA) / "models" / f".{uuid4().hex}"
    try:
        link_files(source, draft, files, link=LINK)
        for path, expected in files.items():
            verify_file(draft, path, expected, lambda: None)
        return _place(draft, checkpoint, name=name, user=user, num_bytes=num_bytes)
    except IntegrityError:
        raise UserError(
            "models.name_taken",
            f"A model called “{name}” already exists. Choose another name.",
        ) from None
    except OSError as error:
        raise UserError(
            "models.not_copied",
            f"Failed to copy the model to {draft.parent}: {error.strerror}.",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@transaction.atomic
def _place(
    draft: Path, checkpoint: Checkpoint, *, name: str, user: User, num_bytes: int
) -> PublishedModel:
    """Place the model and its files, both or neither."""
    run = checkpoint.run
    model = PublishedModel.objects.create(
        team=run.team,
        name=name,
        run=run,
        run_name=run.name,
        step=checkpoint.step,
        sha256=checkpoint.sha256,
        num_bytes=num_bytes,
        published_by=user,
    )
    record(run.team, user, "model.published", model, name=name, run=run.pk)
    model.folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(model.folder, ignore_errors=True)  # of a lost transaction
    draft.rename(model.folder)
    return model


@transaction.atomic
def unpublish(*, model: PublishedModel, user: User) -> None:
    """Delete it. ValueError names the runs that still need it."""
    # A launch that is about to need it is waited for.
    locked = PublishedModel.objects.select_for_update().filter(pk=model.pk).first()
    if locked is None:
        return
    if needed := needs_of(locked.team).get(folder_of(locked)):
        names = ", ".join(f"{run.name} (run {run.pk}, {run.state})" for run in needed)
        raise UserError(
            "models.in_use",
            f"{locked} is in use by {names}. Stop the run, or wait until it ends.",
        )
    record(locked.team, user, "model.unpublished", locked, name=locked.name)
    folder = locked.folder
    locked.delete()
    transaction.on_commit(lambda: discard(folder))
