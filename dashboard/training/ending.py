"""What a trainer's end means for its run."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import transaction

from dashboard.runs.changing import STEPS
from dashboard.runs.models import Epoch, Run, RunState
from dashboard.runs.state import END_TIME, transition
from dashboard.samples.cleaning import clean_text
from dashboard.training.lease import HOLDING, Claim, Fenced, close_epoch
from dashboard.training.lives import fail, lose_life
from trainer.events import RunFailed, RunFinished, RunPaused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.events import Event

FINISHED, FAILED, BAD_CONFIG, STOPPED, PAUSED = range(5)
SHOWN_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    status: int  # exit status; negative: the signal that killed it
    last_word: Event | None  # RunFinished, RunFailed, RunStopped or RunPaused
    step: int  # the last one its log speaks of
    log_lines: Sequence[str]  # the end of what it printed
    was_released: bool  # the worker shut down and asked it to stop

    @property
    def outcome(self) -> str:
        """How the log page and the audit log put it."""
        if self.status < 0:
            how = f"killed by {_signal_name(-self.status)}"
        else:
            how = _STATUS_NAMES.get(self.status, f"exit status {self.status}")
        return f"{how} at step {self.step}"

    @property
    def is_a_crash(self) -> bool:
        """The program's own doing; SIGKILL comes from a person or from the kernel."""
        return self.status not in (FINISHED, STOPPED, PAUSED, -signal.SIGKILL)


_STATUS_NAMES = {
    FINISHED: "finished",
    FAILED: "failed",
    BAD_CONFIG: "refused its configuration",
    STOPPED: "stopped",
    PAUSED: "paused, as too many scores failed",
    75: "left alone by its supervisor",
}


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (a person, or the kernel when memory ran out)"
    return signal.Signals(number).name


@transaction.atomic
def conclude(claim: Claim, ending: Ending) -> None:
    """Move the run on after its trainer's end; Fenced when it is not ours any more."""
    held = Run.objects.select_for_update().filter(
        claim.guard, id=claim.run_id, state__in=HOLDING
    )
    run = held.first()
    if run is None:
        raise Fenced(f"Run {claim.run_id} is not held by epoch {claim.epoch} any more.")
    close_epoch(run.id, claim.epoch, ending.outcome)
    if isinstance(ending.last_word, RunFinished) and ending.status == FINISHED:
        _finish(run, ending)
    elif isinstance(ending.last_word, RunPaused) and run.state != RunState.STOPPING:
        _pause(run, reason=_pause_reason(ending.last_word))
    elif ending.status in (FINISHED, FAILED, BAD_CONFIG):
        fail(run.id, _fail_reason(ending))
    elif run.state == RunState.STOPPING:
        _end(run, RunState.STOPPED)
    elif run.state == RunState.PAUSING and ending.status == STOPPED:
        _pause(run, reason=run.pause_reason)
    elif ending.was_released and run.state != RunState.PAUSING:
        _release(run, ending, why="the worker shut down")
    elif run.state != RunState.PAUSING and _is_poison(claim, ending):
        fail(run.id, _poison_reason(ending))
    else:
        lose_life(run, outcome=ending.outcome)


def _finish(run: Run, ending: Ending) -> None:
    """It is not the end where the run was extended behind its trainer's last look."""
    unheard = run.changes.filter(heard_step=None, after__has_key=STEPS)
    if run.state == RunState.STOPPING or not unheard.exists():
        _end(run, RunState.FINISHED)
    elif run.state == RunState.PAUSING:
        _pause(run, reason=run.pause_reason)
    else:
        _release(run, ending, why="the run was extended during its last step")


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


def _pause_reason(paused: RunPaused) -> str:
    """What failed, and what to do, in lines."""
    faults = [
        f'{fault.count:,} times, rule "{fault.rule}": {fault.error}'
        for fault in paused.faults
    ]
    remedy = (
        f"Mend what failed, then resume: step {paused.step + 1:,} is sampled and "
        "scored again. To go on although scores fail, allow more errors when you "
        "resume."
    )
    return clean_text("\n".join([paused.reason, *faults, remedy]))


def _release(run: Run, ending: Ending, *, why: str) -> None:
    """Back into the queue; what was nobody's fault costs the run nothing."""
    transition(
        run.id,
        sources=[RunState.STARTING, RunState.RUNNING],
        target=RunState.QUEUED,
        detail={"outcome": ending.outcome, "why": why},
        not_before=None,
    )


def _is_poison(claim: Claim, ending: Ending) -> bool:
    """The life before died at the same step in the same way."""
    if not ending.is_a_crash:
        return False
    before = Epoch.objects.filter(run_id=claim.run_id, number__lt=claim.epoch)
    last = before.order_by("-number").first()
    return last is not None and last.outcome == ending.outcome


def _poison_reason(ending: Ending) -> str:
    return _with_log(
        f"The trainer crashed twice in the same way ({ending.outcome}), so it was not "
        "started a third time.",
        ending,
    )


def _fail_reason(ending: Ending) -> str:
    if isinstance(ending.last_word, RunFailed):
        return clean_text(ending.last_word.error)
    if ending.status == BAD_CONFIG:
        return _with_log("The trainer refused the configuration.", ending)
    if ending.status == FINISHED:
        return _with_log("The trainer ended without saying that it finished.", ending)
    return _with_log("The trainer failed without saying why.", ending)


def _with_log(sentence: str, ending: Ending) -> str:
    shown = "\n".join(ending.log_lines[-SHOWN_LINES:])
    return clean_text(f"{sentence} Its last lines:\n{shown}" if shown else sentence)
