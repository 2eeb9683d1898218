"""Stores events in their tables, and progress in the run's row."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cohort.lines import number
from dashboard.completions.mismatch import pack_mismatch
from dashboard.completions.models import Group, MismatchStep
from dashboard.completions.tokens import pack_tokens
from dashboard.datasets.row import stored_answer
from dashboard.project.database import clean_json, clean_text
from dashboard.runs.charts.downsampling import (
    add_steps,
    build_rollups,
    summarize_evaluations,
)
from dashboard.runs.models import REWARD, Checkpoint, Evaluation
from dashboard.runs.queue.estimates import PACE_STEPS, STEP_SECONDS
from dashboard.supervision.rollups import (
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
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    GroupScored,
    MismatchMeasured,
    RanksMeasured,
    ScoredCompletion,
    StepFinished,
    TokensMeasured,
)
from trainer.metric_names import MAX_METRICS, keep_first
from trainer.rewards.rule import Answer, answers_of, as_answer

NAME_LENGTH = 120
LARGEST = sys.float_info.max
# What a step sampled, and the metric that adds it up: the axis of a chart.
TOTALS = {
    "sampling/num_tokens": "total/tokens",
    "sampling/num_completions": "total/completions",
}
# What is stored elsewhere is not stored in RunEvent.body again.
WITHOUT_BODY = (
    StepFinished,
    GroupScored,
    TokensMeasured,
    MismatchMeasured,
    RanksMeasured,
)
PLACE_FIELDS = {"type", "line", "attempt", "time", "step"}


@dataclass(slots=True, kw_only=True)
class Progress:
    """Starts as the stored row has it; `is_changed` tells to write it back.

    summary = {"last": {metric: value}, "best": {"reward/mean": value, "step": n},
    "step_seconds": what the latest steps took, oldest first}
    """

    metric_names: list[str]
    summary: dict[str, Any]
    last_step: int
    is_changed: bool = False
    _places: dict[str, int] = field(init=False)
    _totals: dict[str, float] = field(init=False)
    _names: set[str] = field(init=False)  # those of evaluations too

    def __post_init__(self) -> None:
        self._places = {name: place for place, name in enumerate(self.metric_names)}
        last = self.summary.setdefault("last", {})
        self.summary.setdefault("best", {})
        self._names = {*self.metric_names, *last}
        # A run that was not counted from its first step on has no totals.
        start = {} if self.last_step else dict.fromkeys(TOTALS.values(), 0.0)
        totals = {name: last[name] for name in TOTALS.values() if name in last}
        self._totals = start | totals

    def bound(self, event: Event) -> Event:
        """Return the event without metrics beyond the run's limit; the first names
        stay.
        """
        if not isinstance(event, StepFinished | Evaluated) or self._names.issuperset(
            event.metrics
        ):
            return event
        metrics = keep_first(event.metrics, self._names, limit=MAX_METRICS)
        return event.model_copy(update={"metrics": metrics})

    def observe(self, event: Event) -> None:
        if isinstance(event, StepFinished):
            self.last_step = max(self.last_step, event.step)
            reward, seconds = map(event.metrics.get, (REWARD, STEP_SECONDS))
            if reward is not None and math.isfinite(reward):
                best = self.summary["best"].get(REWARD)
                if best is None or reward > best:
                    self.summary["best"] = {REWARD: reward, "step": event.step}
            if seconds is not None and math.isfinite(seconds):
                latest = [*self.summary.get("step_seconds", []), seconds]
                self.summary["step_seconds"] = latest[-PACE_STEPS:]
        if isinstance(event, StepFinished | Evaluated):
            self.summary["last"].update(finite(event.metrics))
            self.is_changed = True

    def values(self, metrics: Mapping[str, float | None]) -> list[float | None]:
        """List the metrics in the order of `metric_names`, which grows as needed."""
        row: list[float | None] = [None] * len(self.metric_names)
        measured = finite(metrics)
        # The run's totals up to this step, if the step reports them.
        totals = {}
        for metric, total in TOTALS.items():
            added = measured.get(metric)
            if total in self._totals and added is not None:
                # jsonb has no infinity either.
                totals[total] = max(-LARGEST, min(LARGEST, self._totals[total] + added))
        self._totals |= totals
        self.summary["last"] |= totals
        for name, value in (measured | totals).items():
            place = self._places.setdefault(name[:NAME_LENGTH], len(row))
            if place < len(row):
                row[place] = value
            else:
                self.metric_names.append(name[:NAME_LENGTH])
                self.is_changed = True
                row.append(value)
        return row


def finite(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """jsonb has no NaN: a non-finite number becomes null."""
    return {name: number(value) for name, value in metrics.items()}


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event and its number in the run's stream."""

    seq: int
    event: Event

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.event.time, UTC)


def copy_events(run_id: int, placed: Iterable[NumberedEvent]) -> None:
    rows = [
        (run_id, p.seq, e.attempt, e.line, e.type, e.step, p.time, _body(e))  # type: ignore[attr-defined]  # every kind of event has its type
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


def copy_steps(
    run_id: int, placed: Iterable[NumberedEvent], progress: Progress
) -> None:
    ended = [(p, p.event) for p in placed if isinstance(p.event, StepFinished)]
    values = [progress.values(event.metrics) for _, event in ended]
    rows = [
        (run_id, event.step, event.attempt, p.seq, p.time, number_array(measured))
        for (p, event), measured in zip(ended, values, strict=True)
    ]
    if rows:
        copy_rows("runs_step", STEP_COLUMNS, rows)
        steps = [event.step for _, event in ended]
        build_rollups(run_id, first_step=min(steps), last_step=max(steps))
        add_steps(run_id, progress.metric_names, steps, values)


def copy_groups(run_id: int, placed: Iterable[NumberedEvent]) -> None:
    groups = [(p.seq, p.event) for p in placed if isinstance(p.event, GroupScored)]
    if not groups:
        return
    with_ids = [
        (pk, *group)
        for pk, group in zip(
            take_ids("samples_group", len(groups)), groups, strict=True
        )
    ]
    copy_rows(
        "samples_group",
        GROUP_COLUMNS,
        [_group_row(pk, run_id, seq, event) for pk, seq, event in with_ids],
    )
    copy_rows(
        "samples_groupcompletions",
        COMPLETION_COLUMNS,
        (_completions_row(pk, e) for pk, _, e in with_ids if e.completions),
    )
    notes = [row for pk, _, e in with_ids for row in _note_rows(pk, run_id, e)]
    if notes:
        copy_rows("samples_rulenote", NOTE_COLUMNS, notes)


def copy_tokens(run_id: int, events: Iterable[Event]) -> None:
    """Call it after `copy_groups`; two queries if there are values, else none.

    The group may have come with an earlier batch. If token values of a group come
    twice, the first count, as with evaluations; values without their group are dropped.
    """
    measured = [event for event in events if isinstance(event, TokensMeasured)]
    if not measured:
        return
    places = {(event.attempt, event.step, event.prompt_index) for event in measured}
    attempts, steps, prompts = zip(*places, strict=True)
    groups = Group.objects.filter(
        run_id=run_id, attempt__in=attempts, step__in=steps, prompt_index__in=prompts
    )
    # Of the groups that have no token values yet.
    ids = {
        tuple(place): group_id
        for *place, group_id in groups.filter(tokens=None).values_list(
            "attempt", "step", "prompt_index", "id"
        )
    }
    rows: dict[int, TokensMeasured] = {}
    for event in measured:
        group_id = ids.get((event.attempt, event.step, event.prompt_index))
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


def add_mismatches(run_id: int, events: Iterable[Event]) -> None:
    """Store what steps measured of the sampler; of a step that comes twice the first
    counts.
    """
    rows = [
        pack_mismatch(event, run_id)
        for event in events
        if isinstance(event, MismatchMeasured)
    ]
    if rows:
        MismatchStep.objects.bulk_create(rows, ignore_conflicts=True)


def _rule_names(event: GroupScored) -> list[str]:
    """List rules in the recipe's order; some completions may lack a rule."""
    return list(dict.fromkeys(name for c in event.completions for name in c.rules))


def _group_row(
    group_id: int, run_id: int, seq: int, event: GroupScored
) -> tuple[object, ...]:
    answer: Answer | None = clean_json(as_answer(answers_of(event.answer)))
    return (
        group_id,
        run_id,
        event.step,
        event.prompt_index,
        event.attempt,
        seq,
        clean_text(event.prompt),
        clean_text(event.begun),
        json.dumps(_tree(event, "messages")) if event.messages else None,
        stored_answer(answer),
        isinstance(answer, list),
        event.reward_mean,
        event.reward_std,
        event.signal,
        text_array(name[:40] for name in _rule_names(event)),
        event.is_trained,
        event.num_notes,
        event.age,
    )


def _completions_row(group_id: int, event: GroupScored) -> tuple[object, ...]:
    names, completions = _rule_names(event), event.completions
    texts = [clean_text(c.text) for c in completions]
    return (
        group_id,
        text_array(texts),
        sum(len(text.encode()) for text in texts),
        number_array(c.num_tokens for c in completions),
        text_array(c.end_reason for c in completions),
        number_array(c.reward for c in completions),
        number_array(c.advantage for c in completions),
        number_array(c.mean_logprob for c in completions),
        number_array(c.rules.get(name) for c in completions for name in names),
        json.dumps([_tree(c, "turns") for c in completions])
        if any(c.turns for c in completions)
        else None,
    )


def _tree(record: GroupScored | ScoredCompletion, name: str) -> Any:
    # Through pydantic's JSON, where a number that is not finite is null.
    text = record.model_dump_json(include={name}, exclude_defaults=True)
    return clean_json(json.loads(text).get(name, []))


def _note_rows(
    group_id: int, run_id: int, event: GroupScored
) -> Iterable[tuple[object, ...]]:
    for position, completion in enumerate(event.completions):
        for is_error, texts in ((True, completion.errors), (False, completion.logs)):
            for rule, text in texts.items():
                name = clean_text(rule[:40])
                place = (run_id, group_id, event.step, position)
                yield *place, name, is_error, clean_text(text)


def add_evaluations(run_id: int, placed: Iterable[NumberedEvent]) -> None:
    """Store evaluations; a resumed trainer may repeat its checkpoint's: the first
    counts.
    """
    evaluations = [
        Evaluation(
            run_id=run_id,
            step=p.event.step,
            name=clean_text(p.event.name)[:80],
            attempt=p.event.attempt,
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


def add_checkpoints(run_id: int, placed: Iterable[NumberedEvent]) -> None:
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(
                run_id=run_id,
                step=p.event.step,
                attempt=p.event.attempt,
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
