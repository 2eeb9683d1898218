"""What a fork begins from, where its launch could not see the files."""

from __future__ import annotations

from collections.abc import Callable

from dashboard.runs.checkpoints.listing import origin_of, take_checkpoint
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory


def take_origin(
    run: Run, directory: RunDirectory, *, on_progress: Callable[[], None]
) -> None:
    """Have the checkpoint in the fork's own directory before it first trains.

    ValueError: its files are gone. What was saved since makes up for them.
    """
    origin = origin_of(run, directory)
    is_begun = run.checkpoints.filter(epoch__gt=0, superseded_by=None).exists()
    if is_begun or origin.is_dir():
        return
    if run.forked_from_id is None:
        raise ValueError(
            f"This fork begins from checkpoint {run.fork_checkpoint} of a run that was "
            "deleted, and its files are gone with it. Launch a new run."
        )
    take_checkpoint(
        run.forked_from_id,
        run.fork_checkpoint,
        origin,
        sha256=run.fork_sha256,
        on_progress=on_progress,
    )
