"""Doing a claimed job: its heartbeat, its progress, and what comes of it."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

from django.conf import settings
from django.db import OperationalError, connection
from django.db.models import F
from django.db.models.functions import Now

from dashboard.jobs.kinds import (
    Context,
    JobCancelled,
    JobInterrupted,
    JobReleased,
    LeaseLost,
    kind_of,
    lane_of,
    lanes_of,
    names_of,
)
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import (
    RETRY_SECONDS,
    claim_job,
    claim_next,
    due_jobs,
)
from dashboard.project.database import clean_text, session_lock

logger = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 1.0


class Heartbeat:
    """A thread with its own connection: the handler's may be in a transaction."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._ended.wait(HEARTBEAT_SECONDS):
                before = self._context.interruption
                self._send()
                ends = self._context.interruption in (JobCancelled, LeaseLost)
                if ends and self._context.interruption is not before:
                    self._context.on_interrupt()
                if self._context.interruption is LeaseLost:
                    return
        finally:
            connection.close()

    def _send(self) -> None:
        context = self._context
        lease = Now() + context.kind.lease
        try:
            row = context.held()
            if not row.update(lease_until=lease, **dict(context.noted)):
                context.interruption = LeaseLost
            elif row.filter(cancel_requested=True).exists():
                context.interruption = JobCancelled
            elif self._is_turn_over() and context.gives_way():
                context.interruption = JobReleased
        except Exception as error:  # noqa: BLE001 - without a heart the job is lost
            logger.warning("%s failed to report its progress: %s", context.job, error)
            connection.close()

    def _is_turn_over(self) -> bool:
        context = self._context
        turn = context.kind.turn_seconds
        if turn is None or time.monotonic() - context.began < turn:
            return False
        others = due_jobs().filter(kind__in=names_of(lane_of(context.kind)))
        if not context.kind.yields_to_own_team:
            others = others.exclude(team=context.job.team_id)
        return others.exists()


def run(context: Context, *, beats: bool = True) -> None:
    """Do the job, and write down what came of it."""
    claim = context.claim
    try:
        with Heartbeat(context) if beats else nullcontext():
            context.kind.run(context)
    except JobReleased:
        if not claim.release(**context.noted):
            claim.end(JobState.CANCELLED, **context.noted)
    except JobInterrupted:  # another worker has a lost job
        claim.end(JobState.CANCELLED, **context.noted)
    except ValueError as error:
        _fail(context, str(error))
    except OperationalError as error:
        _retry_later(context, error)
    except OSError as error:
        _fail(context, _disk_fault(error))
    except Exception:
        logger.exception("%s failed with an internal error", context.job)
        _fail(
            context,
            f"The {context.kind.noun} failed with an internal error. See the log "
            f"of the {context.kind.queue} worker.",
        )
    else:
        claim.end(JobState.DONE, **context.noted)


def _fail(context: Context, error: str) -> None:
    context.claim.end(JobState.FAILED, error=clean_text(error), **context.noted)


def _retry_later(context: Context, error: OperationalError) -> None:
    """After an outage of the database, or a lock that was waited for too long."""
    num_losses = 1 + (context.held().values_list("num_losses", flat=True).first() or 0)
    if num_losses < context.kind.max_losses:
        delay = timedelta(seconds=RETRY_SECONDS * 3 ** (num_losses - 1))
        if context.claim.release(
            num_losses=F("num_losses") + 1, not_before=Now() + delay
        ):
            return
    if context.held().filter(cancel_requested=True).exists():
        context.claim.end(JobState.CANCELLED, **context.noted)
        return
    reason = str(error).strip().split("\n")[0]
    _fail(context, f"The database failed to store the result: {reason}.")


def _disk_fault(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"The disk with {settings.COHORT_DATA} is full. Free some space, then "
            "try again."
        )
    return f"{error.strerror or error} under {settings.COHORT_DATA}."


def run_now(job: Job) -> None:
    """Do what is small in this process, without a worker."""
    if claim := claim_job(job.pk, worker="web"):  # None: a worker was first
        run(Context(claim), beats=False)
    job.refresh_from_db()


def run_pending(
    queue: str, worker: str, *, is_shutting_down: Callable[[], bool]
) -> None:
    """Do the queue's jobs that wait, those of a lane one after another."""
    for lane in lanes_of(queue):
        kinds = [kind_of(name) for name in names_of(lane)]
        if not all(kind.is_exclusive for kind in kinds):
            _run_lane(lane, worker, is_shutting_down, at_most=1)
            continue
        with session_lock(lane, worker) as is_mine:
            if is_mine:
                _run_lane(lane, worker, is_shutting_down)


def _run_lane(
    lane: str,
    worker: str,
    is_shutting_down: Callable[[], bool],
    *,
    at_most: int | None = None,
) -> None:
    num_done = 0
    while not is_shutting_down() and num_done != at_most:
        claim = claim_next(names_of(lane), worker)
        if claim is None:
            return
        run(Context(claim, is_shutting_down=is_shutting_down))
        num_done += 1
