"""Events into the database: one fenced transaction a batch, each line once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from django.db import OperationalError, transaction
from django.db.models import F, Max
from django.db.models.functions import Coalesce, Now

from dashboard.alerts.firing import observe, pause_for
from dashboard.alerts.models import Alert
from dashboard.datasets.limits import is_disk_full
from dashboard.live.pubsub import notify_on_commit
from dashboard.project.database import fetch_all
from dashboard.runs.checkpoints.retention import keep_best
from dashboard.runs.models import Run, RunEvent, RunState
from dashboard.runs.state import transition
from dashboard.supervision.lease import HOLDING, Claim, LeaseLost
from dashboard.supervision.process import record_changes
from dashboard.supervision.ranks import store_ranks
from dashboard.supervision.rollups import copy_rollups
from dashboard.supervision.storage import (
    NumberedEvent,
    Progress,
    add_checkpoints,
    add_evaluations,
    add_mismatches,
    copy_events,
    copy_groups,
    copy_steps,
    copy_tokens,
)
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    GroupScored,
    MismatchMeasured,
    RanksMeasured,
    RunResumed,
    RunStarted,
    TokensMeasured,
)


def last_ingested_line(run_id: int, attempt: int) -> int:
    """Return the last stored line of this attempt's log, or 0; one query."""
    last: int | None = RunEvent.objects.filter(
        run_id=run_id, attempt=attempt
    ).aggregate(last=Max("line"))["last"]
    return last or 0


def ingest(claim: Claim, events: Sequence[Event], *, observes: bool = True) -> int:
    """Store consecutive events of one log; returns how many were new.

    `observes`: evaluate alert rules.

    The holder of the run is its only writer, so stored lines end at one number and
    everything after it is new.

    Raises LeaseLost, having written nothing, if `claim` does not hold the run, and
    OperationalError on a full disk, which would stop the database.
    """
    if not events:
        return 0
    if is_disk_full(share=0.25):
        raise OperationalError("the disk of the database is full")
    with transaction.atomic():
        last_seq, progress = _fence(claim)
        # After the fence: a COMMIT that we gave up waiting for may still be running.
        stored = last_ingested_line(claim.run_id, events[0].attempt)
        new = [event for event in events if event.line > stored]
        placed = [
            NumberedEvent(last_seq + n, progress.bound(event))
            for n, event in enumerate(new, start=1)
        ]
        if placed:
            _store(claim, placed, progress, observes=observes)
    if any(isinstance(event, CheckpointSaved | Evaluated) for event in new):
        keep_best(claim.run_id)
    return len(new)


def _store(
    claim: Claim, placed: Sequence[NumberedEvent], progress: Progress, *, observes: bool
) -> None:
    events = [p.event for p in placed]
    first_seq, last_seq = placed[0].seq, placed[-1].seq
    Run.objects.filter(id=claim.run_id).update(
        seq=last_seq, ingest_lag=max(0.0, time.time() - min(e.time for e in events))
    )
    metric_names = list(progress.metric_names)
    copy_steps(claim.run_id, placed, progress)
    copy_groups(claim.run_id, placed)
    copy_tokens(claim.run_id, events)
    add_mismatches(claim.run_id, events)
    copy_rollups(claim.run_id, events, first_seq=first_seq)
    copy_events(claim.run_id, placed)
    add_evaluations(claim.run_id, placed)
    add_checkpoints(claim.run_id, placed)
    record_changes(claim.run_id, events)
    store_ranks(claim.run_id, events)
    for event in events:
        progress.observe(event)
    if progress.is_changed:
        write_progress(claim.run_id, progress)
    pausing: Sequence[Alert] = ()
    if observes:
        observation = observe(
            claim.run_id, events, first_seq=first_seq, known=metric_names
        )
        pausing = observation.pausing
        if observation.has_changed:
            Run.objects.filter(id=claim.run_id).update(alerts_seq=last_seq)
    # A page shows these with their step, so there is nothing to see before.
    parts = GroupScored | TokensMeasured | MismatchMeasured | RanksMeasured
    if not all(isinstance(event, parts) for event in events):
        notify_on_commit(claim.run_id, last_seq)
    _note_attempt(claim, events)
    for alert in pausing:
        pause_for(alert, when=claim.guard)


def _fence(claim: Claim) -> tuple[int, Progress]:
    """Return the last assigned number, and the run's progress.

    Locks the run's row, which makes commit order the stream's order.
    """
    rows = fetch_all(
        "SELECT seq, metric_names, summary, last_step FROM runs_run "
        "WHERE id = %s AND epoch = %s AND state = ANY(%s) FOR NO KEY UPDATE",
        [claim.run_id, claim.attempt, [s.value for s in HOLDING]],
    )
    if not rows:
        raise LeaseLost(claim)
    seq, names, summary, last_step = rows[0]
    if isinstance(summary, str):  # Django reads jsonb through its field only
        summary = json.loads(summary)
    return seq, Progress(metric_names=names, summary=summary, last_step=last_step)


def write_progress(run_id: int, progress: Progress) -> None:
    Run.objects.filter(id=run_id).update(
        metric_names=progress.metric_names,
        summary=progress.summary,
        last_step=progress.last_step,
    )


def _note_attempt(claim: Claim, events: Sequence[Event]) -> None:
    """Note the trainer's first event, which makes the run running, and checkpoints."""
    own = [event for event in events if event.attempt == claim.attempt]
    if any(isinstance(event, RunStarted | RunResumed) for event in own):
        transition(
            claim.run_id,
            sources=[RunState.STARTING],
            target=RunState.RUNNING,
            when=claim.guard,
            started_at=Coalesce(F("started_at"), Now()),
            active_at=Now(),
        )
    if any(isinstance(event, CheckpointSaved) for event in own):
        # Losses count between checkpoints: an attempt that got further did not fail.
        Run.objects.filter(id=claim.run_id, num_losses__gt=0).update(num_losses=0)
