"""Which queued runs this worker can go on with: those whose files it sees."""

from __future__ import annotations

import logging
import re

from dashboard.runs.checkpoints.files import Shelf
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.training.checkpoints import checkpoint_folders
from dashboard.training.models import Worker

logger = logging.getLogger(__name__)


def sees_files(run: Run) -> bool:
    """A run that was never saved can begin anywhere; another needs its checkpoint.

    One whose checkpoints were all deleted waits for nobody: who takes it says so.
    A fork that waits for its first life may still have to take its own from the run
    that it was forked from.
    """
    if not run.checkpoints.filter(superseded_by=None, deleted_at=None).exists():
        return True
    if checkpoint_folders(run_directory(run.id).checkpoints):
        return True
    parent = run.forked_from_id if run.epoch == 0 else None
    return parent is not None and Shelf(parent).is_seen


def left_runs(notice: str) -> frozenset[int]:
    """The runs that such a notice is about."""
    said = re.match(r"Leaves queued run ([\d, ]+) to another worker", notice)
    return frozenset(map(int, said[1].split(", "))) if said else frozenset()


def note_unseen(worker: str, runs: list[Run]) -> None:
    """Say on the workers page which runs are left for another worker, and why."""
    names = ", ".join(str(run.id) for run in runs)
    notice = (
        f"Leaves queued run {names} to another worker: no checkpoint is to be seen "
        f"under {run_directory(runs[0].id).checkpoints}."
        if runs
        else ""
    )
    if notice:
        logger.warning("%s: %s", worker, notice)
    Worker.objects.filter(name=worker).exclude(notice=notice).update(notice=notice)
