"""Runs that are locked: nobody changes them before somebody unlocks them.

A lock holds name, notes, tags, settings and checkpoints as they are and keeps the run
out of archive and trash. What a run at work does goes on, as do stars.
"""

from __future__ import annotations

from dashboard.accounts.models import User
from dashboard.runs.models import Run


def why_held(run: Run) -> str:
    """Why it may not be changed, to follow the run's name; "" where it may be."""
    if run.locked_at is None:
        return ""
    by = run.locked_by
    if by is None and run.locked_by_id is not None:
        # Somebody locked it while we waited for its row: PostgreSQL gives the row as it
        # is now, beside the person that it had before, which is nobody.
        by = User.objects.filter(pk=run.locked_by_id).first()
    return f"is locked by {by or 'somebody who has left'}; unlock it first"


def refuse_held(run: Run) -> None:
    """ValueError where it may not be changed; its row should be locked."""
    if run.trashed_at is not None:
        raise ValueError(f"Nothing was changed: {run.name} is in the trash.")
    if reason := why_held(run):
        raise ValueError(f"Nothing was changed: {run.name} {reason}.")
