"""A run that lost its trainer or its worker: another life, or the end."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import END_TIME, transition
from dashboard.training.lease import HOLDING, close_epoch
from dashboard.training.tail import SHOWN_LINES, read_tail, with_tail

MAX_ATTEMPTS = 3
ENDING = [RunState.STARTING, RunState.RUNNING, RunState.PAUSING, RunState.STOPPING]


def back_off(attempt: int) -> timedelta:
    """10 s, 30 s, 90 s after the first, second and third loss."""
    return timedelta(seconds=10 * 3**attempt)


@transaction.atomic
def lose_life(run: Run, *, outcome: str, advice: str = "") -> bool:
    """Requeue a held run after a rest; at the fourth loss in a row it has failed.

    `advice` is what to do then.

    One whose stop was asked for is stopped instead, and one that was to pause is
    paused, at the checkpoint that it has. An outside run stays lost. False when
    another process got there first. `run` may be stale but for its epoch.
    """
    held = Run.objects.select_for_update().filter(
        id=run.id, epoch=run.epoch, state__in=HOLDING
    )
    found = held.first()
    if found is None:
        return False
    run = found
    transition(
        run.id,
        sources=[RunState(run.state)],
        target=RunState.LOST,
        detail={"outcome": outcome, "epoch": run.epoch},
    )
    close_epoch(run.id, run.epoch, outcome)
    if run.is_outside:
        return True  # nothing here starts it again; it goes on when it speaks again
    if run.state == RunState.STOPPING:
        return _stop(run.id)
    if run.state == RunState.PAUSING:
        return transition(run.id, sources=[RunState.LOST], target=RunState.PAUSED)
    if run.attempt >= MAX_ATTEMPTS:
        reason = (
            f"The run was lost {run.attempt + 1} times in a row without reaching a new "
            "checkpoint, so it was not started again. The last time: "
            f"{outcome}. {advice}".rstrip()
        )
        return fail(run.id, with_tail(reason, _last_lines(run)))
    return transition(
        run.id,
        sources=[RunState.LOST],
        target=RunState.QUEUED,
        attempt=run.attempt + 1,
        not_before=Now() + back_off(run.attempt),
    )


def _last_lines(run: Run) -> list[str]:
    """Of what its trainer printed, as far as this host sees it."""
    log = run_directory(run.id).epoch(run.epoch).trainer_log
    try:
        return read_tail(log, max_lines=SHOWN_LINES).lines
    except OSError:
        return []


def _stop(run_id: int) -> bool:
    return transition(
        run_id,
        sources=[RunState.LOST],
        target=RunState.STOPPED,
        finished_at=END_TIME,
    )


def fail(run_id: int, reason: str) -> bool:
    """`reason` is a sentence for the run's owner."""
    return transition(
        run_id,
        sources=[RunState.LOST, *ENDING],
        target=RunState.FAILED,
        detail={"reason": reason[:2_000]},
        fail_reason=reason,
        finished_at=END_TIME,
    )
