"""What a trainer's end means for its run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.project.database import clean_text
from dashboard.runs.changes import STEPS
from dashboard.runs.models import Run, RunAttempt, RunState
from dashboard.runs.queue.hosts import Needs
from dashboard.runs.state import END_TIME, transition
from dashboard.supervision.event_log import with_tail
from dashboard.supervision.lease import (
    Claim,
    close_attempt,
    fail,
    lock_run,
    lose_attempt,
)
from trainer.events import Event, RunFailed, RunFinished, RunPaused

FINISHED, FAILED, BAD_CONFIG, STOPPED, PAUSED = range(5)
# Marks runs that resume on free disk space, so no other reason may end with it.
DISK_REMEDY = "Free some space there. The run then continues from its last checkpoint."
OWNERS_REMEDY = "Free some space there, then resume the run from its last checkpoint."
MEMORY_ADVICE = (
    "Lower optim.micro_batch_tokens or rollout.max_batch_rows, choose a smaller model, "
    "or a worker with more memory."
)
_STATUS_NAMES = {
    FINISHED: "finished",
    FAILED: "failed",
    BAD_CONFIG: "rejected its configuration",
    STOPPED: "stopped",
    PAUSED: "paused",
    75: "lost its supervisor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    status: int  # exit status; negative: the signal that killed it
    last_word: Event | None  # RunFinished, RunFailed, RunStopped or RunPaused
    step: int  # the last one its log speaks of
    log_lines: Sequence[str]  # the end of what it printed
    was_released: bool  # the worker shut down and requested a stop
    was_out_of_memory: bool = False  # by the kernel's counter
    has_hung: bool = False  # and was killed for it

    @property
    def outcome(self) -> str:
        """The outcome in the words of the log page and the audit log."""
        if self.was_out_of_memory:
            how = "out of memory (killed by the kernel)"
        elif self.has_hung:
            how = "hung and was killed"
        elif self.status < 0:
            how = f"killed by {signal.Signals(-self.status).name}"
            if -self.status == signal.SIGKILL:
                how += " (a user, or the kernel when out of memory)"
        else:
            how = _STATUS_NAMES.get(self.status, f"exit status {self.status}")
        return f"{how} at step {self.step}"


@transaction.atomic
def conclude(claim: Claim, ending: Ending) -> None:
    """Move the run on after its trainer's end; LeaseLost when it is another's."""
    run = lock_run(claim)
    close_attempt(run.id, claim.attempt, ending.outcome)
    if isinstance(ending.last_word, RunFinished) and ending.status == FINISHED:
        _finish(run, ending)
    elif isinstance(ending.last_word, RunPaused) and run.state != RunState.STOPPING:
        _pause(run, reason=_pause_reason(run, ending.last_word))
    elif ending.status == PAUSED and run.state != RunState.STOPPING:
        _pause(
            run,
            reason=_with_log(
                "The trainer paused the run but failed to write the reason. "
                f"{describe_disk()}",
                ending,
            ),
        )
    elif ending.status in (FINISHED, FAILED, BAD_CONFIG):
        fail(run.id, _fail_reason(ending))
    elif run.state == RunState.STOPPING:
        _end(run, RunState.STOPPED)
    elif run.state == RunState.PAUSING and ending.status == STOPPED:
        _pause(run, reason=run.pause_reason)
    elif ending.was_released and run.state != RunState.PAUSING:
        _release(run, ending, why="worker shutdown")
    elif run.state != RunState.PAUSING and _is_poison(claim, ending):
        fail(
            run.id,
            _with_log(
                f"The trainer crashed twice in the same way ({ending.outcome}), so "
                "Cohort did not restart it.",
                ending,
            ),
        )
    else:
        lose_attempt(
            run,
            outcome=ending.outcome,
            advice=MEMORY_ADVICE if ending.was_out_of_memory else "",
        )


@transaction.atomic
def give_up(claim: Claim, reason: str) -> None:
    """Fail the run for what its supervisor met; LeaseLost when it is another's."""
    run = lock_run(claim)
    close_attempt(run.id, claim.attempt, f"ended by its worker at step {run.last_step}")
    fail(run.id, reason)


def _finish(run: Run, ending: Ending) -> None:
    """Finish the run, or requeue it if its trainer missed an extension."""
    if not run.changes.filter(applied_step=None, after__has_key=STEPS).exists():
        _end(run, RunState.FINISHED)
    elif run.state == RunState.STOPPING:
        _end(run, RunState.STOPPED)  # before reaching its extended number of steps
    elif run.state == RunState.PAUSING:
        _pause(run, reason=run.pause_reason)
    else:
        _release(run, ending, why="run extended during its last step")


def _end(run: Run, target: RunState) -> None:
    transition(
        run.id,
        sources=[RunState(run.state)],
        target=target,
        finished_at=END_TIME,
    )


def _pause(run: Run, *, reason: str) -> None:
    transition(
        run.id,
        sources=[RunState(run.state)],
        target=RunState.PAUSED,
        detail={"reason": reason[:2_000]},
        pause_reason=reason,
    )


def _pause_reason(run: Run, paused: RunPaused) -> str:
    """Say who requested it, what failed, and what to do, line by line."""
    request = _pause_request(run)
    if paused.share is None:
        # With a storage the full disk is a node's, which no worker can check.
        is_here = not (settings.COHORT_RAY_STORAGE and Needs.of(run.config).ranks)
        waits_for_room = paused.needs_bytes is not None and is_here and not request
        remedy = DISK_REMEDY if waits_for_room else OWNERS_REMEDY
        return clean_text("\n".join([*request, paused.reason, remedy]))
    step = paused.step + 1
    faults = [
        f"{fault.rule} failed for {fault.count:,} "
        f"completion{'' if fault.count == 1 else 's'} of step {step:,}: {fault.error}"
        for fault in paused.faults
    ]
    limit = f"The run pauses above {paused.limit or 0:.0%} failures."
    remedy = (
        f"{limit} Resume scores step {step:,} again with the same reward; it may allow "
        "more errors. To change the reward, edit it and continue with its new version."
    )
    return clean_text("\n".join([*request, *(faults or [paused.reason]), remedy]))


def _pause_request(run: Run) -> list[str]:
    """Return the reason of a person's or an alert's pause request."""
    return [run.pause_reason] if run.state == RunState.PAUSING else []


@transaction.atomic
def pause_unstarted(claim: Claim, cause: str, reason: str) -> None:
    """Pause a run whose trainer was not started, for what an operator can mend.

    LeaseLost if another attempt holds the run.
    """
    run = lock_run(claim)
    close_attempt(run.id, claim.attempt, f"{cause}; trainer not started")
    if run.state == RunState.STOPPING:
        _end(run, RunState.STOPPED)
    else:
        _pause(run, reason="\n".join([*_pause_request(run), reason]))


@transaction.atomic
def end_unstarted(claim: Claim) -> None:
    """Stop or pause, as requested, a run whose trainer was not started.

    LeaseLost if another attempt holds the run.
    """
    run = lock_run(claim)
    close_attempt(run.id, claim.attempt, "trainer not started")
    if run.state == RunState.STOPPING:
        _end(run, RunState.STOPPED)
    else:
        _pause(run, reason=run.pause_reason)


def describe_disk() -> str:
    free = shutil.disk_usage(settings.COHORT_DATA).free
    return (
        f"The disk with {settings.COHORT_DATA} has {num_bytes(free)} free. "
        f"{OWNERS_REMEDY}"
    )


def _release(run: Run, ending: Ending, *, why: str) -> None:
    """Requeue it without counting a loss."""
    transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.QUEUED,
        detail={"outcome": ending.outcome, "why": why},
        not_before=None,
    )


def _is_poison(claim: Claim, ending: Ending) -> bool:
    """Tell whether the attempt before died at the same step in the same way."""
    # SIGKILL comes from a person or from the kernel.
    if ending.status in (FINISHED, STOPPED, PAUSED, -signal.SIGKILL):
        return False
    last = (
        RunAttempt.objects.filter(run_id=claim.run_id, number__lt=claim.attempt)
        .order_by("-number")
        .first()
    )
    return last is not None and last.outcome == ending.outcome


def _fail_reason(ending: Ending) -> str:
    if isinstance(ending.last_word, RunFailed):
        return clean_text(ending.last_word.error)
    if ending.status == BAD_CONFIG:
        return _with_log("The trainer rejected the configuration.", ending)
    if ending.status == FINISHED:
        return _with_log("The trainer exited without reporting a finished run.", ending)
    return _with_log("The trainer failed without reporting a reason.", ending)


def _with_log(sentence: str, ending: Ending) -> str:
    return with_tail(sentence, ending.log_lines)
