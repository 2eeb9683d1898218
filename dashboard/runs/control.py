"""Stop, cancel, pause and resume a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from dashboard.accounts.models import User
from dashboard.runs.models import ENDED, Run, RunState
from dashboard.runs.state import END_TIME, notify_workers, transition
from trainer.config import RunConfig

ERROR_SHARE = "max_error_share"
PAUSED_BY = "Paused by "  # the beginning of a person's reason


def request_stop(*, run: Run, user: User | None) -> bool:
    """Request the run's end; False if it has ended or is already ending.

    A run without a worker stops at once. Otherwise its supervisor lets the trainer
    finish its step and save a checkpoint. An external trainer keeps running, but its
    events are ignored from now on.
    """
    if run.is_external:
        return _close_external(run, user)
    return transition(
        run.id,
        sources=[RunState.QUEUED, RunState.PAUSED, RunState.LOST],
        target=RunState.STOPPED,
        actor=user,
        verb="run.stop_requested",
        finished_at=END_TIME,
    ) or transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING, RunState.PAUSING],
        target=RunState.STOPPING,
        actor=user,
        verb="run.stop_requested",
    )


@transaction.atomic
def _close_external(run: Run, user: User | None) -> bool:
    is_stopped = transition(
        run.id,
        sources=[RunState.RUNNING, RunState.LOST],
        target=RunState.STOPPED,
        actor=user,
        verb="run.stop_requested",
        stop_reason=f"Closed by {user.username if user else 'Cohort'}. Cohort ignores "
        "further data from the trainer.",
        finished_at=END_TIME,
    )
    if is_stopped:
        run.attempts.filter(number=run.attempt, ended_at=None).update(
            ended_at=Now(), outcome=f"closed at step {run.last_step}"
        )
    return is_stopped


@transaction.atomic
def cancel_run(*, run: Run, user: User) -> bool:
    """End the run now, without a checkpoint; False if it has ended.

    The state alone fences off the worker: its supervisor sees it at the next poll and
    kills the trainer. A worker that is dead or hangs needs no reply.
    """
    live = [state for state in RunState if state not in ENDED]
    locked = Run.objects.select_for_update().get(id=run.id)
    is_cancelled = transition(
        run.id,
        sources=live,
        target=RunState.STOPPED,
        actor=user,
        verb="run.cancelled",
        detail={"was": locked.state},
        stop_reason=f"Cancelled by {user.username}. {describe_loss(locked)}",
        finished_at=END_TIME,
    )
    if is_cancelled:
        locked.attempts.filter(number=locked.attempt, ended_at=None).update(
            ended_at=Now(), outcome=f"cancelled at step {locked.last_step}"
        )
    return is_cancelled


def describe_loss(run: Run) -> str:
    """Describe the steps lost if the run ends now without a checkpoint."""
    saved = run.newest_checkpoint.step if run.newest_checkpoint else 0
    lost = run.last_step - saved
    if lost <= 0:
        return "No training is lost."
    steps, them = f"The last {lost:,} steps stay", "them"
    if lost == 1:
        steps, them = f"Step {run.last_step:,} stays", "it"
    where = f"The last checkpoint is from step {saved:,}."
    if not saved:
        where = "The run has no checkpoint."
    return f"{where} {steps} recorded, but no run can continue from {them}."


def request_pause(*, run: Run, user: User) -> bool:
    """Request a checkpoint and the release of the worker; False if it has none."""
    return transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.PAUSING,
        when=Q(source={}),
        actor=user,
        verb="run.pause_requested",
        pause_reason=f"{PAUSED_BY}{user.username}.",
    )


@transaction.atomic
def resume_run(
    *,
    run: Run,
    user: User,
    max_error_share: float | None = None,
    seen_attempt: int | None = None,
) -> bool:
    """Queue a paused run again, from its last checkpoint.

    False if it is not paused, was resumed and paused again since `seen_attempt`, or is
    locked while the share would change. Only `max_error_share` may change: it decides
    when a run pauses, not what a step teaches.
    """
    changed: dict[str, Any] = {}
    guard = Q() if seen_attempt is None else Q(attempt=seen_attempt)
    if max_error_share not in (None, common_share(run.config)):
        guard &= Q(locked_at=None)
        changed["config"] = allow_share(run.config, max_error_share)
    is_queued = transition(
        run.id,
        sources=[RunState.PAUSED],
        target=RunState.QUEUED,
        when=guard,
        actor=user,
        verb="run.resume_requested",
        detail={"max_error_share": max_error_share} if changed else None,
        pause_reason="",
        num_losses=0,
        not_before=None,
        **changed,
    )
    if is_queued:
        transaction.on_commit(notify_workers)
    return is_queued


def common_share(config: dict[str, Any]) -> float | None:
    """Return the share that all phases allow; None if they differ."""
    shares = {reward.get(ERROR_SHARE) for reward in _rewards(config)}
    return shares.pop() if len(shares) == 1 else None


def allow_share(config: dict[str, Any], share: float) -> dict[str, Any]:
    """Allow this share of errors in every phase of the configuration."""
    tree = copy.deepcopy(config)
    for reward in _rewards(tree):
        reward[ERROR_SHARE] = share
    return RunConfig.model_validate(tree).model_dump(mode="json")


def _rewards(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """List the settings of the run, and of each phase that has a share of its own."""
    yield config["reward"]
    for phase in config.get("phases") or ():
        reward = phase.get("changes", {}).get("reward", {})
        if ERROR_SHARE in reward:
            yield reward
