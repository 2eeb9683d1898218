"""A run's progress, as its page shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import duration, rounded
from dashboard.runs.control import PAUSED_BY, common_share
from dashboard.runs.models import ENDED, Run, RunState
from dashboard.runs.queue.estimates import step_seconds, steps_take
from dashboard.runs.queue.hosts import Needs, describe_cluster_lack
from dashboard.runs.queue.messages import describe_position, describe_short
from dashboard.runs.queue.order import read_queue

# No step follows in these states unless a trainer takes the run again.
RESTING = (*ENDED, RunState.PAUSED, RunState.LOST)
# A trainer without a sign of progress for so many of its steps stands still, but not
# before so many seconds.
SILENT_STEPS, SILENT_SECONDS = 5, 60.0
CONTACT = timedelta(minutes=5)  # without it, an external run is lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The part of a run's page that changes while it is open."""

    state: str
    title: str  # of the browser's tab
    last_step: int
    num_steps: int
    attempt: int
    seconds_left: float | None
    silence: str  # "no step for 6 min"
    phrase: str  # after the state: "12 min 05 s left", "by alice, 32 min ago"
    notice: str
    is_stuck: bool  # paused itself, so it needs a person
    fail_reason: str
    pause_reason: str
    stop_reason: str
    # run and step of the checkpoint, seconds of training before it
    fork: dict[str, int | float | None] | None
    errors_allowed: float | None  # None if phases differ
    has_ended: bool
    on_hold: bool
    priority: int
    alerts_seq: int  # the page requests its alerts when this rises

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_progress(run: Run) -> Progress:
    """Four queries when the run is queued, one when it lost an attempt or is paused;
    else none.
    """
    describe = SITUATIONS.get(RunState(run.state))
    phrase, notice = describe(run) if describe else ("", "")
    sentences = [notice, _left_out(run)]
    return Progress(
        state=run.state,
        title=tab_title(run),
        last_step=run.last_step,
        num_steps=run.num_steps,
        attempt=run.attempt,
        seconds_left=seconds_left(run),
        silence=describe_silence(run),
        phrase=phrase,
        notice=" ".join(filter(None, sentences)),
        is_stuck=is_stuck(run),
        fail_reason=run.fail_reason,
        pause_reason=run.pause_reason if run.state == RunState.PAUSED else "",
        stop_reason=run.stop_reason if run.state == RunState.STOPPED else "",
        fork=describe_fork(run),
        errors_allowed=common_share(run.config),
        has_ended=run.has_ended,
        on_hold=run.on_hold,
        priority=run.priority,
        alerts_seq=run.alerts_seq,
    )


def is_stuck(run: Run) -> bool:
    """Tell whether the run paused itself: it needs a person, or room on a disk."""
    is_by_itself = run.pause_reason and not run.pause_reason.startswith(PAUSED_BY)
    return run.state == RunState.PAUSED and bool(is_by_itself)


ENDS = {RunState.FINISHED: "✓", RunState.STOPPED: "■", RunState.FAILED: "✕"}


def tab_title(run: Run) -> str:
    """Write the name after its progress: "7/10 · name", "✓ name"."""
    if run.state in ENDS:
        return f"{ENDS[RunState(run.state)]} {run.name}"
    if run.last_step and run.num_steps:
        return f"{run.last_step:,}/{run.num_steps:,} · {run.name}"
    return run.name


def describe_fork(run: Run) -> dict[str, int | float | None] | None:
    if run.fork_step is None:
        return None
    seconds = (run.fork_totals or {}).get("seconds")
    return {"run": run.forked_from_id, "step": run.fork_step, "seconds": seconds}


def seconds_left(run: Run) -> float | None:
    """Estimate the seconds of the remaining steps at the latest pace, without
    evaluations.
    """
    num_left = run.num_steps - run.last_step
    if run.state in RESTING or num_left <= 0 or silent_seconds(run):
        return None
    return steps_take(num_left, _pace(run))


def silent_seconds(run: Run) -> float | None:
    """Time since a sign of progress, if the trainer seems to stand still."""
    if run.state != RunState.RUNNING or run.active_at is None:
        return None
    if not (pace := _pace(run)):
        return None
    seconds = (timezone.now() - run.active_at).total_seconds()
    return seconds if seconds > max(SILENT_STEPS * pace, SILENT_SECONDS) else None


def describe_silence(run: Run) -> str:
    seconds = silent_seconds(run)
    return f"no step for {rounded(seconds)}" if seconds else ""


def _pace(run: Run) -> float | None:
    """Return the seconds of a step; the run list reads them without the summary."""
    if hasattr(run, "pace"):
        return step_seconds(run.pace, None) if isinstance(run.pace, list) else run.pace
    return step_seconds(run.summary.get("step_seconds"), run.summary.get("last"))


def _left_out(run: Run) -> str:
    """Count the events and metrics of an external run that were skipped."""
    if not run.is_external:
        return ""
    sentences = []
    if num := run.source.get("num_left_out", 0):
        events = "1 event was" if num == 1 else f"{num:,} events were"
        sentences.append(f"{events} skipped. Last reason: {run.source['left_out']}")
    if most := run.source.get("most_metrics"):
        sentences.append(f"Cohort keeps the first {most:,} metrics of a run.")
    return " ".join(sentences)


def _queued(run: Run) -> tuple[str, str]:
    again = (
        f"The trainer was lost {_num_losses(run)}{_last_outcome(run)}. The run is "
        "queued again."
        if run.num_losses
        else ""
    )
    if run.not_before and run.not_before > timezone.now():
        when = f"{run.not_before:%H:%M:%S} UTC"
        notice = f"{again} Next attempt after {when}.".strip()
        return f"next attempt at {when}", notice
    queue = read_queue()
    position = queue.positions.get(run.id)  # none once a worker took it
    reasons = (
        again,
        describe_position(position, queue) if position else "",
        describe_cluster_lack(Needs.of(run.config), run.team),
    )
    phrase = describe_short(position, queue) if position else ""
    return phrase, " ".join(filter(None, reasons))


def _num_losses(run: Run) -> str:
    return "once" if run.num_losses == 1 else f"{run.num_losses} times in a row"


def _last_outcome(run: Run) -> str:
    """Say after a colon how its last attempt ended."""
    outcome = (
        run.attempts.filter(ended_at__isnull=False)
        .exclude(outcome="")
        .order_by("-number")
        .values_list("outcome", flat=True)
        .first()
    )
    return f": {outcome}" if outcome else ""


def _starting(run: Run) -> tuple[str, str]:
    if Needs.of(run.config).ranks is not None:
        # Its own ranks may hold what the last reading shows as busy.
        return "on the Ray cluster", (
            f"{run.worker or 'A worker'} is starting the run on the Ray cluster. If "
            "GPUs are busy, it waits for them; see its log."
        )
    return "loading the model", f"{run.worker or 'A worker'} is loading the model."


def _running(run: Run) -> tuple[str, str]:
    silence = describe_silence(run)
    if silence and run.is_external:
        ago = rounded((timezone.now() - _last_contact(run)).total_seconds())
        return silence, f"{silence.capitalize()}; the trainer reported {ago} ago."
    if silence:
        return silence, (
            f"{silence.capitalize()}, nor another sign of progress; a step takes "
            f"{duration(_pace(run))}. See the logs, and the worker on Compute."
        )
    left = seconds_left(run)
    phrase = "" if left is None else f"{duration(left)} left"
    if not run.num_losses:
        return phrase, ""
    return phrase, (
        f"Resumed from its last checkpoint on {run.worker}. Before that, the trainer "
        f"was lost {_num_losses(run)}{_last_outcome(run)}."
    )


def _paused(run: Run) -> tuple[str, str]:
    who = "by itself"
    if run.pause_reason.startswith(PAUSED_BY):
        who = run.pause_reason.partition("\n")[0].removeprefix("Paused ").rstrip(".")
    since = run.attempts.aggregate(since=Max("ended_at"))["since"]
    ago = f", {rounded((timezone.now() - since).total_seconds())} ago" if since else ""
    return f"{who}{ago}", ""


def _lost(run: Run) -> tuple[str, str]:
    if run.is_external:
        since = _last_contact(run)
        age = rounded((timezone.now() - since).total_seconds())
        phrase = f"no contact since {since:%H:%M} UTC ({age})"
        return phrase, (
            f"N{phrase[1:]}. The trainer's reporter stores unsent data on disk and "
            "continues when it reconnects."
        )
    return "no contact", (
        f"No contact with {run.worker or 'the worker'} for a minute. Cohort queues the "
        "run again, and it resumes from its last checkpoint."
    )


def _last_contact(run: Run) -> datetime:
    """Return when an external run's trainer last reported."""
    if run.lease_until:
        return run.lease_until - CONTACT
    return run.active_at or run.created_at


SAVING = "saving a checkpoint"
# A phrase for the header, and sentences for the Overview.
SITUATIONS: dict[RunState, Callable[[Run], tuple[str, str]]] = {
    RunState.QUEUED: _queued,
    RunState.STARTING: _starting,
    RunState.RUNNING: _running,
    RunState.PAUSING: lambda _run: (
        SAVING,
        "The trainer finishes its step, saves a checkpoint and frees its worker.",
    ),
    RunState.PAUSED: _paused,
    RunState.STOPPING: lambda _run: (
        SAVING,
        "The trainer finishes its step and saves a checkpoint.",
    ),
    RunState.LOST: _lost,
}
