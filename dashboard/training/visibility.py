"""Which queued runs this worker can go on with: those whose files it sees."""

from __future__ import annotations

import logging

from dashboard.runs.directory import run_directory
from dashboard.runs.models import Run
from dashboard.training.checkpoints import list_checkpoints
from dashboard.training.models import Worker

logger = logging.getLogger(__name__)


def sees_files(run: Run) -> bool:
    """A run that was never saved can begin anywhere; another needs its checkpoint."""
    if run.epoch == 0 or not run.checkpoints.filter(superseded_by=None).exists():
        return True
    return bool(list_checkpoints(run_directory(run.id).checkpoints))


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
