"""Runs that are locked: nobody changes them before somebody unlocks them.

A lock holds name, notes, tags, settings and checkpoints as they are and keeps the run
out of archive and trash. What a run at work does goes on, as do stars.
"""

from __future__ import annotations

from dashboard.runs.models import Run


def why_held(run: Run) -> str:
    """Why it may not be changed, to follow the run's name; "" where it may be."""
    if run.locked_at is None:
        return ""
    return f"is locked by {run.locked_by or 'somebody who has left'}; unlock it first"


def refuse_held(run: Run) -> None:
    """ValueError where it may not be changed; its row should be locked."""
    if run.trashed_at is not None:
        raise ValueError(f"Nothing was changed: {run.name} is in the trash.")
    if reason := why_held(run):
        raise ValueError(f"Nothing was changed: {run.name} {reason}.")
