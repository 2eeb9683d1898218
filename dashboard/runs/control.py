"""What people ask of a run that was launched: to stop, to pause, to go on."""

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


def request_stop(*, run: Run, user: User | None) -> bool:
    """Ask for the run's end; False when it has ended or is already ending.

    A run that no worker holds is stopped at once, another by its supervisor, which
    lets the trainer finish its step and save a checkpoint. An outside trainer is not
    stopped by it: what it sends is not taken any more.
    """
    if run.is_outside:
        return _close_outside(run, user)
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
def _close_outside(run: Run, user: User | None) -> bool:
    is_stopped = transition(
        run.id,
        sources=[RunState.RUNNING, RunState.LOST],
        target=RunState.STOPPED,
        actor=user,
        verb="run.stop_requested",
        stop_reason=f"{user.username if user else 'Somebody'} closed it. Cohort "
        "ignores what its trainer sends.",
        finished_at=END_TIME,
    )
    if is_stopped:
        attempt = run.attempts.filter(number=run.attempt, ended_at=None)
        attempt.update(ended_at=Now(), outcome=f"closed at step {run.last_step}")
    return is_stopped


@transaction.atomic
def cancel_run(*, run: Run, user: User) -> bool:
    """End the run now, without a checkpoint; False when it has ended.

    Whoever holds it is fenced off by the state alone: its supervisor sees that at its
    next look and kills the trainer, and one that is gone or hangs is not asked.
    """
    live = [state for state in RunState if state not in ENDED]
    held = Run.objects.select_for_update().get(id=run.id)
    is_cancelled = transition(
        run.id,
        sources=live,
        target=RunState.STOPPED,
        actor=user,
        verb="run.cancelled",
        detail={"was": held.state},
        stop_reason=f"{user.username} cancelled it. {describe_loss(held)}",
        finished_at=END_TIME,
    )
    if is_cancelled:
        attempt = held.attempts.filter(number=held.attempt, ended_at=None)
        attempt.update(ended_at=Now(), outcome=f"cancelled at step {held.last_step}")
    return is_cancelled


def describe_loss(run: Run) -> str:
    """What cannot be gone on from where the run ends without a checkpoint."""
    saved = run.newest_checkpoint.step if run.newest_checkpoint else 0
    lost = run.last_step - saved
    if lost <= 0:
        return "Nothing that was trained is lost."
    steps = f"step {run.last_step:,}" if lost == 1 else f"its last {lost:,} steps"
    where = f"The last checkpoint is of step {saved:,}" if saved else "None was saved"
    return f"{where}: {steps} stay recorded, but no run can continue from them."


def request_pause(*, run: Run, user: User) -> bool:
    """Ask a run that has a worker to save and let go of it; False when it has none."""
    return transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.PAUSING,
        when=Q(source={}),
        actor=user,
        verb="run.pause_requested",
        pause_reason=f"{user.username} asked for it.",
    )


@transaction.atomic
def resume_run(
    *,
    run: Run,
    user: User,
    max_error_share: float | None = None,
    seen_attempt: int | None = None,
) -> bool:
    """Queue a paused run again; False when it is not paused, or not as it was seen.

    False as well when a share is to change and the run is locked.

    It goes on from its last checkpoint. `max_error_share` is the one setting that may
    change: it decides when a run pauses, and nothing of what it learns from a step
    that it trains on. `seen_attempt` is that of the pause which somebody answers: since
    then it may have been resumed, with another share, and have paused anew.
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
    """The share that all phases allow; None where they differ."""
    shares = {reward.get(ERROR_SHARE) for reward in _rewards(config)}
    return shares.pop() if len(shares) == 1 else None


def allow_share(config: dict[str, Any], share: float) -> dict[str, Any]:
    """The configuration with this share of errors allowed, in every phase."""
    tree = copy.deepcopy(config)
    for reward in _rewards(tree):
        reward[ERROR_SHARE] = share
    return RunConfig.model_validate(tree).model_dump(mode="json")


def _rewards(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of the run, and of each phase that has a share of its own."""
    yield config["reward"]
    for phase in config.get("phases") or ():
        reward = phase.get("changes", {}).get("reward", {})
        if ERROR_SHARE in reward:
            yield reward
