"""Events into the database: one fenced transaction a batch, each line once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Max
from django.db.models.functions import Coalesce, Now

from dashboard.live.publish import ring_on_commit
from dashboard.runs.models import Checkpoint, Evaluation, Run, RunEvent, RunState
from dashboard.runs.state import transition
from dashboard.training.cleaning import clean_json, clean_text
from dashboard.training.copying import (
    COMPLETION_COLUMNS,
    EVENT_COLUMNS,
    GROUP_COLUMNS,
    NOTE_COLUMNS,
    STEP_COLUMNS,
    copy_rows,
    float_array,
    take_ids,
    text_array,
)
from dashboard.training.lease import HOLDING, Claim, Fenced
from dashboard.training.progress import Progress, finite
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    GroupScored,
    RunResumed,
    RunStarted,
    StepFinished,
)

# What is stored elsewhere is not stored in RunEvent.body again.
WITHOUT_BODY = (StepFinished, GroupScored)
PLACE_FIELDS = {"type", "line", "epoch", "time", "step"}


@dataclass(frozen=True, slots=True)
class Placed:
    """An event and its number in the run's stream."""

    seq: int
    event: Event

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.event.time, UTC)


def last_ingested_line(run_id: int, epoch: int) -> int:
    """0 when nothing of this epoch's log is stored; one query."""
    stored = RunEvent.objects.filter(run_id=run_id, epoch=epoch)
    last: int | None = stored.aggregate(last=Max("line"))["last"]
    return last or 0


def ingest(claim: Claim, events: Sequence[Event]) -> int:
    """Store consecutive events of one log; how many were new.

    Whoever holds the run is its only writer, so what is stored ends at one line and
    everything behind it is new. Raises Fenced, having written nothing, when `claim`
    does not hold the run.
    """
    if not events:
        return 0
    stored = last_ingested_line(claim.run_id, events[0].epoch)
    new = [event for event in events if event.line > stored]
    if new:
        with transaction.atomic():
            _store(claim, new)
    return len(new)


def _store(claim: Claim, events: Sequence[Event]) -> None:
    first_seq, progress = _take_numbers(claim, len(events))
    placed = [Placed(first_seq + i, event) for i, event in enumerate(events)]
    _copy_steps(claim.run_id, placed, progress)
    _copy_groups(claim.run_id, placed)
    _copy_events(claim.run_id, placed)
    _add_evaluations(claim.run_id, placed)
    _add_checkpoints(claim.run_id, placed)
    for event in events:
        progress.observe(event)
    if progress.is_changed:
        write_progress(claim.run_id, progress)
    ring_on_commit(claim.run_id, placed[-1].seq)
    _note_life(claim, events)


def _take_numbers(claim: Claim, count: int) -> tuple[int, Progress]:
    """The fence: locks the run's row, which makes commit order the stream's order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_run SET seq = seq + %s "
            "WHERE id = %s AND epoch = %s AND state = ANY(%s) "
            "RETURNING seq, metric_names, summary, last_step",
            [count, claim.run_id, claim.epoch, [s.value for s in HOLDING]],
        )
        row = cursor.fetchone()
    if row is None:
        raise Fenced(f"Run {claim.run_id} is not held by epoch {claim.epoch} any more.")
    seq, names, summary, last_step = row
    if isinstance(summary, str):  # Django reads jsonb through its field only
        summary = json.loads(summary)
    return seq - count + 1, Progress(
        metric_names=names, summary=summary, last_step=last_step
    )


def write_progress(run_id: int, progress: Progress) -> None:
    Run.objects.filter(id=run_id).update(
        metric_names=progress.metric_names,
        summary=progress.summary,
        last_step=progress.last_step,
    )


def _copy_events(run_id: int, placed: Iterable[Placed]) -> None:
    rows = [
        (run_id, p.seq, e.epoch, e.line, e.type, e.step, p.time, _body(e))  # type: ignore[attr-defined]  # every kind of event has its type
        for p in placed
        for e in (p.event,)
    ]
    copy_rows("runs_runevent", EVENT_COLUMNS, rows)


def _body(event: Event) -> str:
    if isinstance(event, WITHOUT_BODY):
        return "{}"
    # Through pydantic's JSON, where a number that is not finite is null.
    tree: dict[str, Any] = json.loads(event.model_dump_json(exclude=PLACE_FIELDS))
    return json.dumps(clean_json(tree))


def _copy_steps(run_id: int, placed: Iterable[Placed], progress: Progress) -> None:
    rows = [
        (
            run_id,
            p.event.step,
            p.event.epoch,
            p.seq,
            p.time,
            float_array(progress.values(p.event.metrics)),
        )
        for p in placed
        if isinstance(p.event, StepFinished)
    ]
    if rows:
        copy_rows("runs_step", STEP_COLUMNS, rows)


def _copy_groups(run_id: int, placed: Iterable[Placed]) -> None:
    groups = [(p.seq, p.event) for p in placed if isinstance(p.event, GroupScored)]
    if not groups:
        return
    ids = take_ids("samples_group", len(groups))
    copy_rows(
        "samples_group",
        GROUP_COLUMNS,
        [
            _group_row(group_id, run_id, seq, event)
            for group_id, (seq, event) in zip(ids, groups, strict=True)
        ],
    )
    copy_rows(
        "samples_completion",
        COMPLETION_COLUMNS,
        (
            row
            for group_id, (_, event) in zip(ids, groups, strict=True)
            for row in _completion_rows(group_id, event)
        ),
    )
    notes = [
        row
        for group_id, (_, event) in zip(ids, groups, strict=True)
        for row in _note_rows(group_id, run_id, event)
    ]
    if notes:
        copy_rows("samples_rulenote", NOTE_COLUMNS, notes)


def _rule_names(event: GroupScored) -> list[str]:
    """In the recipe's order; a rule may be missing from some completions."""
    return list(dict.fromkeys(name for c in event.completions for name in c.rules))


def _group_row(
    group_id: int, run_id: int, seq: int, event: GroupScored
) -> tuple[object, ...]:
    return (
        group_id,
        run_id,
        event.step,
        event.prompt_index,
        event.epoch,
        seq,
        clean_text(event.prompt),
        None if event.answer is None else clean_text(event.answer),
        event.reward_mean,
        event.reward_std,
        event.signal,
        text_array(name[:40] for name in _rule_names(event)),
        event.is_trained,
        event.num_notes,
    )


def _completion_rows(group_id: int, event: GroupScored) -> Iterable[tuple[object, ...]]:
    names = _rule_names(event)
    for position, completion in enumerate(event.completions):
        yield (
            group_id,
            position,
            clean_text(completion.text),
            completion.num_tokens,
            completion.end_reason,
            completion.reward,
            float_array(completion.rules.get(name) for name in names),
            completion.advantage,
            completion.mean_logprob,
        )


def _note_rows(
    group_id: int, run_id: int, event: GroupScored
) -> Iterable[tuple[object, ...]]:
    for position, completion in enumerate(event.completions):
        for is_error, texts in ((True, completion.errors), (False, completion.logs)):
            for rule, text in texts.items():
                name = clean_text(rule[:40])
                place = (run_id, group_id, event.step, position)
                yield (*place, name, is_error, clean_text(text))


def _add_evaluations(run_id: int, placed: Iterable[Placed]) -> None:
    """A resumed trainer may repeat its checkpoint's evaluation: the first counts."""
    Evaluation.objects.bulk_create(
        [
            Evaluation(
                run_id=run_id,
                step=p.event.step,
                name=clean_text(p.event.name)[:80],
                epoch=p.event.epoch,
                seq=p.seq,
                time=p.time,
                metrics=clean_json(finite(p.event.metrics)),
            )
            for p in placed
            if isinstance(p.event, Evaluated)
        ],
        ignore_conflicts=True,
    )


def _add_checkpoints(run_id: int, placed: Iterable[Placed]) -> None:
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(
                run_id=run_id,
                step=p.event.step,
                epoch=p.event.epoch,
                name=p.event.name,
                sha256=p.event.sha256,
                num_bytes=p.event.num_bytes,
                saved_at=p.time,
            )
            for p in placed
            if isinstance(p.event, CheckpointSaved)
        ],
        ignore_conflicts=True,
    )


def _note_life(claim: Claim, events: Sequence[Event]) -> None:
    """Its own trainer's first word makes the run running; a checkpoint, unhurt."""
    own = [event for event in events if event.epoch == claim.epoch]
    if any(isinstance(event, RunStarted | RunResumed) for event in own):
        transition(
            claim.run_id,
            sources=[RunState.STARTING],
            target=RunState.RUNNING,
            when=claim.guard,
            started_at=Coalesce(F("started_at"), Now()),
        )
    if any(isinstance(event, CheckpointSaved) for event in own):
        # Lives are counted between checkpoints: one that got further was no failure.
        Run.objects.filter(id=claim.run_id, attempt__gt=0).update(attempt=0)
