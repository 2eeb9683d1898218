"""Events into their tables, each with its number in the run's stream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dashboard.project.database import clean_json, clean_text
from dashboard.runs.charts.downsampling import (
    add_steps,
    build_rollups,
    summarize_evaluations,
)
from dashboard.runs.models import Checkpoint, Evaluation
from dashboard.samples.models import Group
from dashboard.samples.token_records import pack_tokens
from dashboard.training.copying import (
    COMPLETION_COLUMNS,
    EVENT_COLUMNS,
    GROUP_COLUMNS,
    NOTE_COLUMNS,
    STEP_COLUMNS,
    TOKEN_COLUMNS,
    copy_rows,
    number_array,
    take_ids,
    text_array,
)
from dashboard.training.progress import Progress, finite
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    GroupScored,
    StepFinished,
    TokensMeasured,
)

# What is stored elsewhere is not stored in RunEvent.body again.
WITHOUT_BODY = (StepFinished, GroupScored, TokensMeasured)
PLACE_FIELDS = {"type", "line", "epoch", "time", "step"}


@dataclass(frozen=True, slots=True)
class Placed:
    """An event and its number in the run's stream."""

    seq: int
    event: Event

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.event.time, UTC)


def copy_events(run_id: int, placed: Iterable[Placed]) -> None:
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


def copy_steps(run_id: int, placed: Iterable[Placed], progress: Progress) -> None:
    ended = [(p, p.event) for p in placed if isinstance(p.event, StepFinished)]
    values = [progress.values(event.metrics) for _, event in ended]
    rows = [
        (run_id, event.step, event.epoch, p.seq, p.time, number_array(measured))
        for (p, event), measured in zip(ended, values, strict=True)
    ]
    if rows:
        copy_rows("runs_step", STEP_COLUMNS, rows)
        steps = [event.step for _, event in ended]
        build_rollups(run_id, first_step=min(steps), last_step=max(steps))
        add_steps(run_id, progress.metric_names, steps, values)


def copy_groups(run_id: int, placed: Iterable[Placed]) -> None:
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
        "samples_groupcompletions",
        COMPLETION_COLUMNS,
        (
            _completions_row(group_id, event)
            for group_id, (_, event) in zip(ids, groups, strict=True)
            if event.completions
        ),
    )
    notes = [
        row
        for group_id, (_, event) in zip(ids, groups, strict=True)
        for row in _note_rows(group_id, run_id, event)
    ]
    if notes:
        copy_rows("samples_rulenote", NOTE_COLUMNS, notes)


def copy_tokens(run_id: int, events: Iterable[Event]) -> None:
    """Behind `copy_groups`; two queries where there are any, else none.

    The group may have come with an earlier batch. Of a group told of twice the first
    values count, as with evaluations; without its group there is nothing to look at.
    """
    told = [event for event in events if isinstance(event, TokensMeasured)]
    if not told:
        return
    ids = _group_ids(run_id, told)
    rows: dict[int, TokensMeasured] = {}
    for event in told:
        group_id = ids.get((event.epoch, event.step, event.prompt_index))
        if group_id is not None:
            rows.setdefault(group_id, event)
    copy_rows(
        "samples_grouptokens",
        TOKEN_COLUMNS,
        (
            (group_id, pack_tokens(event.completions))
            for group_id, event in rows.items()
        ),
    )


def _group_ids(
    run_id: int, told: Iterable[TokensMeasured]
) -> dict[tuple[int, int, int], int]:
    """Of the groups that have no token values yet, by life, step and prompt."""
    places = {(event.epoch, event.step, event.prompt_index) for event in told}
    epochs, steps, prompts = zip(*places, strict=True)
    found = Group.objects.filter(
        run_id=run_id, epoch__in=epochs, step__in=steps, prompt_index__in=prompts
    )
    found = found.filter(tokens=None)
    rows = found.values_list("epoch", "step", "prompt_index", "id")
    return {(epoch, step, prompt): group_id for epoch, step, prompt, group_id in rows}


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


def _completions_row(group_id: int, event: GroupScored) -> tuple[object, ...]:
    names, each = _rule_names(event), event.completions
    texts = [clean_text(c.text) for c in each]
    return (
        group_id,
        text_array(texts),
        sum(len(text.encode()) for text in texts),
        number_array(c.num_tokens for c in each),
        text_array(c.end_reason for c in each),
        number_array(c.reward for c in each),
        number_array(c.advantage for c in each),
        number_array(c.mean_logprob for c in each),
        number_array(c.rules.get(name) for c in each for name in names),
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


def add_evaluations(run_id: int, placed: Iterable[Placed]) -> None:
    """A resumed trainer may repeat its checkpoint's evaluation: the first counts."""
    evaluations = [
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
    ]
    if evaluations:
        Evaluation.objects.bulk_create(evaluations, ignore_conflicts=True)
        summarize_evaluations(run_id)


def add_checkpoints(run_id: int, placed: Iterable[Placed]) -> None:
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
