"""Pins, deletes and keeps checkpoints beyond the trainer's own cleanup."""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.jobs.models import OPEN
from dashboard.live.pubsub import notify_on_commit
from dashboard.project.errors import UserError
from dashboard.runs.attributes import refuse_locked
from dashboard.runs.checkpoints.files import CheckpointStore, Damaged, FilesGone
from dashboard.runs.checkpoints.listing import NOTHING, list_checkpoints
from dashboard.runs.models import ENDED, Checkpoint, Run
from dashboard.web.edits import find_changes

logger = logging.getLogger(__name__)


@transaction.atomic
def pin(*, checkpoint: Checkpoint, user: User) -> None:
    """Keep it until it is unpinned."""
    run = _lock(checkpoint.run_id)
    store = CheckpointStore(run.pk)
    if not store.is_seen:
        raise UserError("checkpoints.unreachable", unseen(run))
    try:
        store.keep(checkpoint.name)
    except OSError as error:
        raise UserError(
            "checkpoints.pin_failed",
            f"Failed to pin {checkpoint.name}: {error.strerror}. Increase "
            "checkpoint.keep_last in the next run.",
        ) from error
    if run.checkpoints.filter(pk=checkpoint.pk, pinned_at=None, deleted_at=None).update(
        pinned_at=Now()
    ):
        _record(run, user, "checkpoint.pinned", checkpoint)


@transaction.atomic
def unpin(*, checkpoint: Checkpoint, user: User) -> None:
    """Delete it when the retention rules say so."""
    run = _lock(checkpoint.run_id)
    refuse_locked(run)
    if run.checkpoints.filter(pk=checkpoint.pk, pinned_at__isnull=False).update(
        pinned_at=None
    ):
        _record(run, user, "checkpoint.unpinned", checkpoint)
        _keep_best(run)


@transaction.atomic
def delete(*, checkpoint: Checkpoint, user: User) -> None:
    """Delete its files; UserError if it is needed."""
    run = _lock(checkpoint.run_id)
    refuse_locked(run)
    listing = list_checkpoints(run)
    row = next(row for row in listing.rows if row.checkpoint.pk == checkpoint.pk)
    if not row.is_there:
        if not listing.is_seen:
            raise UserError("checkpoints.unreachable", unseen(run))
        raise FilesGone(f"The files of {checkpoint.name} are already deleted.")
    if row.is_resumed_from:
        raise UserError(
            "checkpoints.needed",
            f"The run is {run.state} and needs {checkpoint.name} to resume. Delete the "
            "checkpoint after the run ends.",
        )
    if row.checkpoint.pinned_at is not None:
        raise UserError(
            "checkpoints.pinned", f"{checkpoint.name} is pinned. Unpin it first."
        )
    waiting = run.forks.filter(attempt=0, fork_checkpoint=checkpoint.name).exclude(
        state__in=ENDED
    )
    if fork := waiting.first():
        raise UserError(
            "checkpoints.needed_by_fork",
            f"The fork {fork.name} needs {checkpoint.name} to start. Delete the "
            "checkpoint after the fork has started, or cancel the fork.",
        )
    run.checkpoints.filter(pk=checkpoint.pk).update(deleted_at=Now())
    _record(run, user, "checkpoint.deleted", checkpoint)
    # Last: the database can roll back, the file system cannot.
    CheckpointStore(run.pk).remove(checkpoint.name)


@transaction.atomic
def choose_best_by(*, run: Run, metric: str, user: User, base: str = "") -> None:
    """Keep the best by another metric, by the default ("") or not at all ("none").

    EditConflict: another was chosen since `base`.
    """
    held = _lock(run.pk)
    refuse_locked(held)
    allowed = {"", NOTHING, *list_checkpoints(held).choices}
    if metric not in allowed:
        raise UserError(
            "checkpoints.unknown_metric",
            f"No checkpoint of this run has the metric {metric[:60]!r}. Choose one of "
            f"{', '.join(sorted(allowed - {''}))}.",
        )
    before = held.best_by
    if not find_changes({"metric": before}, {"metric": metric}, base):
        return
    Run.objects.filter(pk=held.pk).update(best_by=metric)
    held.best_by = metric
    record(held.team, user, "run.best_by_changed", held, before=before, metric=metric)
    _keep_best(held)
    _notify(held)


@transaction.atomic
def keep_best(run_id: int) -> None:
    """Called after a save, an evaluation or a try. Checkpoints of open tries stay."""
    _keep_best(_lock(run_id))


def _keep_best(run: Run) -> None:
    """Best effort: a disk without links keeps only what the trainer keeps."""
    try:
        _keep_wanted(run)
    except (FilesGone, Damaged, OSError) as error:
        logger.warning("run %s: failed to keep the best checkpoint: %s", run.pk, error)


def _keep_wanted(run: Run) -> None:
    listing, store = list_checkpoints(run), CheckpointStore(run.pk)
    # A relation of a higher layer, named by string only.
    tried = set(
        run.checkpoints.filter(tries__job__state__in=OPEN).values_list("pk", flat=True)
    )
    wanted = {
        row.checkpoint.name
        for row in listing.rows
        if row.checkpoint.pinned_at is not None
        or row.checkpoint.pk in tried
        or (row.is_best and run.best_by != NOTHING)
    }
    for name in sorted(wanted):
        store.keep(name)
    if run.locked_at is None:
        for name in store.kept_names() - wanted:
            store.release(name)


def _lock(run_id: int) -> Run:
    """Lock its row; its worker and other requests wait for this."""
    return (
        Run.objects.select_for_update(of=("self",))
        .select_related("locked_by")
        .get(pk=run_id)
    )


def _record(run: Run, user: User, verb: str, checkpoint: Checkpoint) -> None:
    record(run.team, user, verb, run, name=checkpoint.name, step=checkpoint.step)
    _notify(run)


def _notify(run: Run) -> None:
    """Update pages that show the run."""
    Run.objects.filter(pk=run.pk).update(seq=F("seq") + 1)
    notify_on_commit(run.pk, run.seq + 1)


def unseen(run: Run) -> str:
    worker = run.worker or "its worker"
    return (
        f"This server cannot read the files of run {run.pk}: they are on the machine "
        f"of {worker}, in {CheckpointStore(run.pk).own}. Set COHORT_DATA to the same "
        "folder on both machines."
    )
