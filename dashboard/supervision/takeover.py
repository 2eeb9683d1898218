"""Going on where another attempt of the run ended: one history, nothing lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from django.db import models, transaction
from django.db.models import F
from django.db.models.functions import Now

from dashboard.alerts.firing import supersede
from dashboard.completions.models import (
    CompletionBlock,
    Group,
    MismatchStep,
    StepRollup,
)
from dashboard.live.pubsub import notify_on_commit
from dashboard.runs.charts.downsampling import drop_rollups, make_summaries
from dashboard.runs.charts.series import totals_of
from dashboard.runs.models import (
    REWARD,
    Checkpoint,
    Evaluation,
    MetricSummary,
    Run,
    RunAttempt,
    Step,
)
from dashboard.runs.queries import RunDirectory
from dashboard.supervision.checkpoints import (
    NAME,
    SavedCheckpoint,
    checkpoint_folders,
    newest_verified,
)
from dashboard.supervision.event_log import LogTailer, SupervisorLog, read_events
from dashboard.supervision.ingest import ingest, write_progress
from dashboard.supervision.lease import Claim, lock_run
from dashboard.supervision.process import record_changes
from dashboard.supervision.storage import Progress

HISTORY: tuple[type[models.Model], ...] = (
    Step,
    Evaluation,
    Group,
    StepRollup,
    MismatchStep,
    Checkpoint,
)


class CannotResume(Exception):
    """The run has checkpoints, but none that may be trusted."""


def take_over(
    claim: Claim,
    directory: RunDirectory,
    *,
    supervisor_log: SupervisorLog,
    keep_alive: Callable[[], None],
    on_damaged: Callable[[str], None] = lambda _reason: None,
) -> SavedCheckpoint | None:
    """Find where to resume and make the stored history end exactly there.

    `on_damaged` gets the reason for each later checkpoint with damaged files.

    None: no checkpoint was ever saved, so the run starts again from step 0.
    """
    refused: list[str] = []
    ends = _ends_of_attempts(claim, directory)
    checkpoint = newest_verified(
        directory.checkpoints,
        is_ours=lambda saved: saved.step <= ends.get(saved.attempt, 0),
        on_refused=refused.append,
        on_damaged=on_damaged,
        on_progress=keep_alive,
    )
    for message in refused:
        supervisor_log.write(f"Skipped a checkpoint: {message}")
    if checkpoint is None:
        saved = Checkpoint.objects.filter(run_id=claim.run_id, superseded_by=None)
        if num := saved.count():
            raise CannotResume(
                f"None of the run's {num} checkpoints can be resumed: "
                f"{' '.join(refused) or 'their files were deleted.'} Clone the run to "
                "start over."
            )
    step = checkpoint.step if checkpoint else 0
    drained = drain_old_log(claim, directory, up_to_step=step, keep_alive=keep_alive)
    cut_history(claim, after=step, checkpoint=checkpoint)
    # Rename later checkpoints, because the new attempt keeps the furthest and deletes
    # others. Only those of earlier attempts: this one may have slept since its claim,
    # and a later attempt's checkpoints belong to the run.
    for path in checkpoint_folders(directory.checkpoints):
        match = NAME.fullmatch(path.name)
        if match and int(match[1]) > step and int(match[2]) < claim.attempt:
            path.rename(path.with_name(f"superseded-{path.name}-{time.time_ns()}"))
    where = f"checkpoint {checkpoint.path.name}" if checkpoint else "the beginning"
    supervisor_log.write(
        f"Resuming from {where}; stored {drained} missing lines of the old log."
    )
    return checkpoint


def _ends_of_attempts(claim: Claim, directory: RunDirectory) -> dict[int, float]:
    """Up to which step each earlier attempt belongs to the run's history.

    A worker without a database connection may keep training and saving after another
    has taken over its run; checkpoints saved past that point do not belong to the
    history.
    """
    before = RunAttempt.objects.filter(run_id=claim.run_id, number__lt=claim.attempt)
    ends: dict[int, float] = {}
    end = math.inf
    for number, from_step in before.order_by("-number").values_list(
        "number", "from_step"
    ):
        ends[number] = end
        if directory.attempt(number).events.exists():  # it came to train
            end = min(end, from_step)
    return ends | {0: math.inf}  # what a fork begins from, saved before its attempts


def drain_old_log(
    claim: Claim,
    directory: RunDirectory,
    *,
    up_to_step: int,
    keep_alive: Callable[[], None],
) -> int:
    """Store what the last attempt logged but its supervisor did not store.

    Only the last log can contain such lines: each attempt drains the previous one
    before it writes its own.
    """
    earlier = [n for n in directory.attempt_numbers() if n < claim.attempt]
    written = [n for n in earlier if directory.attempt(n).events.exists()]
    if not written:
        return 0
    tailer = LogTailer(directory.attempt(written[-1]).events)
    num_new, is_over = 0, False
    while lines := tailer.read():
        events = read_events(lines, attempt=written[-1])
        if not is_over:
            own_events = list(takewhile(lambda event: event.step <= up_to_step, events))
            num_new += ingest(claim, own_events)
            is_over = len(own_events) < len(events)
        # Superseded steps used these settings, and repeating them uses them again.
        record_changes(claim.run_id, events)
        tailer.advance(lines)
        keep_alive()
    return num_new


@transaction.atomic
def cut_history(
    claim: Claim, *, after: int, checkpoint: SavedCheckpoint | None
) -> None:
    """Rows past the checkpoint belong to a history that is over."""
    run = lock_run(claim)
    for model in HISTORY:
        model._default_manager.filter(
            run_id=run.id, superseded_by__isnull=True, step__gt=after
        ).update(superseded_by=claim.attempt)
    drop_rollups(run.id, after=after)
    CompletionBlock.objects.filter(run_id=run.id, last_step__gt=after).delete()
    make_summaries(run.id)
    if checkpoint is not None:
        # The trainer may have died between saving it and saying so.
        Checkpoint.objects.get_or_create(
            run_id=run.id,
            name=checkpoint.path.name,
            defaults={
                "step": checkpoint.step,
                "attempt": checkpoint.attempt,
                "sha256": checkpoint.sha256,
                "num_bytes": checkpoint.num_bytes,
                "saved_at": Now(),
            },
        )
    RunAttempt.objects.filter(run_id=run.id, number=claim.attempt).update(
        from_step=after
    )
    # Last and best as they were when the checkpoint was saved.
    reward = MetricSummary.objects.filter(run=run, name=REWARD).first()
    write_progress(
        run.id,
        Progress(
            metric_names=run.metric_names,
            summary={
                "last": _last_values(run),
                "best": {REWARD: reward.high, "step": reward.high_step}
                if reward
                else {},
            },
            last_step=after,
        ),
    )
    Run.objects.filter(id=run.id).update(seq=F("seq") + 1)
    if supersede(run.id, after=after):
        Run.objects.filter(id=run.id).update(alerts_seq=F("seq"))
    notify_on_commit(run.id, run.seq + 1)


def _last_values(run: Run) -> dict[str, Any]:
    values = (
        run.steps.filter(superseded_by__isnull=True)
        .order_by("-step")
        .values_list("values", flat=True)
        .first()
    )
    # Newer metrics have no value yet; a fork without a step has its parent's totals.
    last = {
        name: value
        for name, value in run.name_values(values or []).items()
        if value is not None
    }
    if values is None:
        last |= totals_of(run.fork_totals)
    for metrics in (
        run.evaluations.filter(superseded_by__isnull=True)
        .order_by("step")
        .values_list("metrics", flat=True)
    ):
        last.update(metrics)
    return last
