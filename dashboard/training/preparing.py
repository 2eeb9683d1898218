"""What comes before a life's trainer: its files, and where it resumes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory
from dashboard.training.beat import Beat
from dashboard.training.changes import freeze_changes
from dashboard.training.checkpoints import SavedCheckpoint
from dashboard.training.ending import end_unstarted, give_up, pause_for_room
from dashboard.training.freeze import freeze
from dashboard.training.journal import Journal
from dashboard.training.lease import RENEW_SECONDS, WISHES, Claim, Fenced, renew
from dashboard.training.lives import lose_life
from dashboard.training.origin import take_origin
from dashboard.training.outage import Patience
from dashboard.training.takeover import CannotResume, take_over


class CannotStart(Exception):
    """The run was ended or requeued before its trainer was started."""


@dataclass(frozen=True, slots=True)
class Start:
    resume_from: Path | None = None
    passed_over: Sequence[str] = ()  # why further checkpoints are damaged


def prepare(
    claim: Claim,
    directory: RunDirectory,
    journal: Journal,
    *,
    is_too_late: Callable[[float], bool],
    look_seconds: float,
) -> Start:
    """Write the run's files and find where to resume; every step can be repeated.

    While the database does not let it, the run is held and what is asked of it heard.
    Raises CannotStart, Fenced or TooLate.
    """
    found: list[Start] = []
    holding = Patience(journal, "Renewing the lease")
    Patience(journal, "Preparing the run").insist(
        lambda: found.append(_start_of(claim, directory, journal)),
        is_too_late=is_too_late,
        meanwhile=Beat(lambda: holding.attempt(lambda: _hold(claim)), look_seconds),
    )
    return found[-1]


def _hold(claim: Claim) -> None:
    wish = WISHES.get(renew(claim))
    if wish is not None:
        end_unstarted(claim)
        raise CannotStart(wish)


def _start_of(claim: Claim, directory: RunDirectory, journal: Journal) -> Start:
    damaged: list[str] = []
    keep_alive = Beat(lambda: renew(claim), RENEW_SECONDS)
    runs = Run.objects.select_related("dataset_version__dataset")
    run = runs.filter(claim.guard, id=claim.run_id).first()
    if run is None:  # what is done with it below goes by its epoch
        raise Fenced(claim)
    journal.write(f"Claimed by {run.worker}.")
    checkpoint: SavedCheckpoint | None = None
    try:
        _make_room_for_its_log(directory, claim.epoch)
        freeze(run, on_progress=keep_alive)
        if run.fork_step is not None:
            take_origin(run, directory, on_progress=keep_alive)
        if run.fork_step is not None or claim.epoch > 1:
            renew(claim)  # which may have taken a while
            checkpoint = take_over(
                claim,
                directory,
                journal=journal,
                keep_alive=keep_alive,
                on_damaged=damaged.append,
            )
        freeze_changes(run, directory.epoch(claim.epoch).changes)
    except OSError as error:
        outcome = f"the run's files could not be prepared: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            pause_for_room(claim)
            raise CannotStart(outcome) from error
        lose_life(run, outcome=outcome)
        raise CannotStart(outcome) from error
    except (CannotResume, ValueError) as error:
        give_up(claim, str(error))
        raise CannotStart(str(error)) from error
    renew(claim)
    return Start(checkpoint.path if checkpoint else None, damaged)


def _make_room_for_its_log(directory: RunDirectory, epoch: int) -> None:
    """What a full disk refuses to a life is asked of it before the life begins."""
    files = directory.epoch(epoch)
    files.path.mkdir(parents=True, exist_ok=True)
    for path in (files.trainer_log, files.trainer_times):
        path.touch()
