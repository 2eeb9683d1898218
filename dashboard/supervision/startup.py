"""What comes before an attempt's trainer: its files, and where it resumes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from django.db import InterfaceError, OperationalError, transaction

from dashboard.accounts.models import AuditEntry
from dashboard.runs.checkpoints.listing import fork_point_of, take_checkpoint
from dashboard.runs.launch.base_models import (
    FolderNotAllowed,
    lock_published,
    versions_of,
)
from dashboard.runs.models import Run
from dashboard.runs.queries import RunDirectory
from dashboard.supervision.checkpoints import SavedCheckpoint
from dashboard.supervision.clusters import cluster_variables
from dashboard.supervision.database_retry import DatabaseRetry
from dashboard.supervision.ending import (
    describe_disk,
    end_unstarted,
    give_up,
    pause_unstarted,
)
from dashboard.supervision.event_log import SupervisorLog
from dashboard.supervision.lease import (
    RENEW_SECONDS,
    REQUESTS,
    Claim,
    LeaseLost,
    lose_attempt,
    renew,
)
from dashboard.supervision.process import write_changes, write_snapshot
from dashboard.supervision.takeover import CannotResume, take_over
from dashboard.supervision.watchdog import Periodic

QUEUEING = ("run.launched", "run.resume_requested", "run.extended")


def originating_request(run_id: int) -> dict[str, str | None]:
    """Team and request ID, for the log; empty if the database does not respond."""
    try:
        run = Run.objects.select_related("team").get(id=run_id)
        request_ids = (
            AuditEntry.objects.filter(
                team=run.team, object_type="run", object_id=run_id, verb__in=QUEUEING
            )
            .order_by("-id")
            .values_list("detail__request_id", flat=True)
        )
        return {"team": run.team.slug, "request_id": request_ids.first()}
    except (OperationalError, InterfaceError, Run.DoesNotExist):
        return {}


def take_fork_checkpoint(
    run: Run, directory: RunDirectory, *, on_progress: Callable[[], None]
) -> None:
    """Copy the checkpoint into the fork's directory before it first trains.

    ValueError if its files were deleted, unless the fork has saved its own since.
    """
    fork_point = fork_point_of(run, directory)
    is_begun = run.checkpoints.filter(attempt__gt=0, superseded_by=None).exists()
    if is_begun or fork_point.is_dir():
        return
    if run.forked_from_id is None:
        raise ValueError(
            f"This fork starts from checkpoint {run.fork_checkpoint} of a deleted "
            "run, so its files no longer exist. Launch a new run."
        )
    take_checkpoint(
        run.forked_from_id,
        run.fork_checkpoint,
        fork_point,
        sha256=run.fork_sha256,
        on_progress=on_progress,
    )


class CannotStart(Exception):
    """The run was ended or requeued before its trainer was started."""


@dataclass(frozen=True, slots=True)
class Start:
    resume_from: Path | None = None
    passed_over: Sequence[str] = ()  # why further checkpoints are damaged
    variables: Mapping[str, str] = field(default_factory=dict)  # of its trainer


def prepare(
    claim: Claim,
    directory: RunDirectory,
    supervisor_log: SupervisorLog,
    *,
    is_too_late: Callable[[float], bool],
    check_seconds: float,
) -> Start:
    """Write the run's files and find where to resume; every step can be repeated.

    During a database outage it keeps the run and reads its requests.

    Raises CannotStart, LeaseLost or TooLate.
    """
    starts: list[Start] = []
    holding = DatabaseRetry(supervisor_log, "Renewing the lease")
    DatabaseRetry(supervisor_log, "Preparing the run").insist(
        lambda: starts.append(_start_of(claim, directory, supervisor_log)),
        is_too_late=is_too_late,
        meanwhile=Periodic(
            lambda: holding.attempt(lambda: _hold(claim)), check_seconds
        ),
    )
    return starts[-1]


def _hold(claim: Claim) -> None:
    request = REQUESTS.get(renew(claim))
    if request is not None:
        end_unstarted(claim)
        raise CannotStart(request)


def _start_of(
    claim: Claim, directory: RunDirectory, supervisor_log: SupervisorLog
) -> Start:
    damaged: list[str] = []
    keep_alive = Periodic(lambda: renew(claim), RENEW_SECONDS)
    run = (
        Run.objects.select_related("team", "dataset_version__dataset")
        .filter(claim.guard, id=claim.run_id)
        .first()
    )
    if run is None:  # what is done with it below goes by its attempt
        raise LeaseLost(claim)
    supervisor_log.write(f"Claimed by {run.worker}.")
    checkpoint: SavedCheckpoint | None = None
    try:
        # What a full disk would refuse before the attempt begins.
        files = directory.attempt(claim.attempt)
        files.path.mkdir(parents=True, exist_ok=True)
        for path in (files.trainer_log, files.trainer_times):
            path.touch()
        with transaction.atomic():  # a folder may lead elsewhere since the launch
            lock_published(run.team, run.config, versions_of(run))
        write_snapshot(run, on_progress=keep_alive)
        if run.fork_step is not None:
            take_fork_checkpoint(run, directory, on_progress=keep_alive)
        if run.fork_step is not None or claim.attempt > 1:
            renew(claim)  # which may have taken long
            checkpoint = take_over(
                claim,
                directory,
                supervisor_log=supervisor_log,
                keep_alive=keep_alive,
                on_damaged=damaged.append,
            )
        write_changes(run, directory.attempt(claim.attempt).changes)
    except OSError as error:
        outcome = f"failed to prepare the run's files: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            pause_unstarted(
                claim,
                "disk full",
                f"Failed to write the run's files. {describe_disk()}",
            )
            raise CannotStart(outcome) from error
        lose_attempt(run, outcome=outcome)
        raise CannotStart(outcome) from error
    except FolderNotAllowed as error:
        pause_unstarted(claim, "model folder not allowed", str(error))
        raise CannotStart(str(error)) from error
    except (CannotResume, ValueError) as error:
        give_up(claim, str(error))
        raise CannotStart(str(error)) from error
    renew(claim)
    return Start(
        checkpoint.path if checkpoint else None, damaged, cluster_variables(run)
    )
