"""Which checkpoints outlive the trainer's own tidying, and which go by hand."""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.jobs.models import OPEN
from dashboard.live.pubsub import notify_on_commit
from dashboard.project.edits import Edit
from dashboard.runs.attributes import refuse_locked
from dashboard.runs.checkpoints.files import CheckpointStore, Damaged, FilesGone
from dashboard.runs.checkpoints.listing import NOTHING, list_checkpoints
from dashboard.runs.models import ENDED, Checkpoint, Run

logger = logging.getLogger(__name__)


@transaction.atomic
def pin(*, checkpoint: Checkpoint, user: User) -> None:
    """Keep it whatever happens. ValueError, where it cannot be kept."""
    run = _lock(checkpoint.run_id)
    store = CheckpointStore(run.pk)
    if not store.is_seen:
        raise FilesGone(unseen(run))
    try:
        store.keep(checkpoint.name)
    except OSError as error:
        raise ValueError(
            f"{checkpoint.name} cannot be kept beside the trainer's own: "
            f"{error.strerror}. Raise checkpoint.keep_last in the next run."
        ) from error
    waiting = run.checkpoints.filter(pk=checkpoint.pk, pinned_at=None, deleted_at=None)
    if waiting.update(pinned_at=Now()):
        _tell(run, user, "checkpoint.pinned", checkpoint)


@transaction.atomic
def unpin(*, checkpoint: Checkpoint, user: User) -> None:
    """Leave it to the rules again. ValueError where the run is locked."""
    run = _lock(checkpoint.run_id)
    refuse_locked(run)
    pinned = run.checkpoints.filter(pk=checkpoint.pk, pinned_at__isnull=False)
    if pinned.update(pinned_at=None):
        _tell(run, user, "checkpoint.unpinned", checkpoint)
        _keep_best(run)


@transaction.atomic
def delete(*, checkpoint: Checkpoint, user: User) -> None:
    """Delete its files by hand. ValueError says why it must stay."""
    run = _lock(checkpoint.run_id)
    refuse_locked(run)
    listing = list_checkpoints(run)
    row = next(row for row in listing.rows if row.checkpoint.pk == checkpoint.pk)
    if not row.is_there:
        raise FilesGone(
            f"{checkpoint.name} is no longer there." if listing.is_seen else unseen(run)
        )
    if row.is_resumed_from:
        raise ValueError(
            f"{checkpoint.name} is needed: the run is {run.state}. Delete it after "
            "the run ends."
        )
    if row.checkpoint.pinned_at is not None:
        raise ValueError(f"{checkpoint.name} is pinned. Unpin it first.")
    waiting = run.forks.filter(attempt=0, fork_checkpoint=checkpoint.name).exclude(
        state__in=ENDED
    )
    if fork := waiting.first():
        raise ValueError(
            f"{checkpoint.name} stays: {fork.name}, forked from it, has not begun. "
            "Delete it once that has, or cancel the fork."
        )
    run.checkpoints.filter(pk=checkpoint.pk).update(deleted_at=Now())
    _tell(run, user, "checkpoint.deleted", checkpoint)
    # Last: what comes before it can still be undone.
    CheckpointStore(run.pk).remove(checkpoint.name)


@transaction.atomic
def choose_best_by(
    *, run: Run, metric: str, user: User, was: str | None = None
) -> None:
    """Keep the best by another metric, by the usual one (""), or none ("none").

    `was`: the one that the user saw; EditConflict where it is neither by now.
    """
    held = _lock(run.pk)
    refuse_locked(held)
    known = {"", NOTHING, *list_checkpoints(held).choices}
    if metric not in known:
        raise ValueError(
            f"No checkpoint of this run has a value of {metric[:60]!r}. Choose one of "
            f"{', '.join(sorted(known - {''}))}."
        )
    before = held.best_by
    if not Edit.of("metric", metric, was).merge({"metric": before}):
        return
    Run.objects.filter(pk=held.pk).update(best_by=metric)
    held.best_by = metric
    record(held.team, user, "run.best_by_changed", held, before=before, metric=metric)
    _keep_best(held)
    _stir(held)


@transaction.atomic
def keep_best(run_id: int) -> None:
    """Called when something was saved, measured or tried.

    What a try waits for is kept as well.
    """
    _keep_best(_lock(run_id))


def _keep_best(run: Run) -> None:
    """Best effort: a disk without links keeps what the trainer keeps, and no more."""
    try:
        _keep_wanted(run)
    except (FilesGone, Damaged, OSError) as error:
        logger.warning("run %s: its best checkpoint was not kept: %s", run.pk, error)


def _keep_wanted(run: Run) -> None:
    listing, store = list_checkpoints(run), CheckpointStore(run.pk)
    # A relation of a higher floor, named by string only.
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
            store.let_go(name)


def _lock(run_id: int) -> Run:
    """Its worker and other people wait for us."""
    runs = Run.objects.select_for_update(of=("self",)).select_related("locked_by")
    return runs.get(pk=run_id)


def _tell(run: Run, user: User, verb: str, checkpoint: Checkpoint) -> None:
    record(run.team, user, verb, run, name=checkpoint.name, step=checkpoint.step)
    _stir(run)


def _stir(run: Run) -> None:
    """Pages that show the run look again."""
    Run.objects.filter(pk=run.pk).update(seq=F("seq") + 1)
    notify_on_commit(run.pk, run.seq + 1)


def unseen(run: Run) -> str:
    where = f" of {run.worker}" if run.worker else " of its worker"
    return (
        f"This server does not see the files of run {run.pk}. They lie on the machine"
        f"{where}, under {CheckpointStore(run.pk).own}; give both the same COHORT_DATA."
    )
