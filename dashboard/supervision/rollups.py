"""A step's rollup, stored with its last line, and those that older steps lack; COPY."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import psycopg
from django.db import connection, transaction
from django.db.models import Q

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.composition import Compositions, read_compositions
from dashboard.completions.signals.records import StepGroup, from_event, read_groups
from dashboard.completions.signals.rollup import roll_up
from dashboard.project.database import clean_text, fetch_all
from dashboard.runs.models import Run, Step
from trainer.events import Event, GroupScored, StepFinished

EVENT_COLUMNS = ("run_id", "seq", "epoch", "line", "type", "step", "time", "body")
STEP_COLUMNS = ("run_id", "step", "epoch", "seq", "time", "values")
GROUP_COLUMNS = (
    "id",
    "run_id",
    "step",
    "prompt_index",
    "epoch",
    "seq",
    "prompt",
    "begun",
    "messages",
    "answer",
    "answer_is_list",
    "reward_mean",
    "reward_std",
    "signal",
    "rule_names",
    "is_trained",
    "num_notes",
    "age",
)
COMPLETION_COLUMNS = (
    "group_id",
    "texts",
    "num_bytes",
    "num_tokens",
    "end_reasons",
    "rewards",
    "advantages",
    "mean_logprobs",
    "rule_scores",
    "turns",
)
ROLLUP_COLUMNS = (
    "run_id",
    "step",
    "epoch",
    "groups",
    "reward_quantiles",
    "reward_histogram",
    "advantage_quantiles",
    "advantage_histogram",
    "rule_names",
    "rules",
    "anatomy",
    "passes",
    "majorities",
)
TOKEN_COLUMNS = ("group_id", "packed")
NOTE_COLUMNS = ("run_id", "group_id", "step", "position", "rule", "is_error", "text")
STEPS_AT_A_TIME = 500


def copy_rows(
    table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Insert rows that are known to be new; values in COPY's text format."""
    names = ", ".join(f'"{column}"' for column in columns)
    # Django passes `copy` on to psycopg's cursor, but does not convert its errors.
    with connection.wrap_database_errors, connection.cursor() as wrapper:
        cursor = cast("psycopg.Cursor[Any]", wrapper)
        with cursor.copy(f'COPY "{table}" ({names}) FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)


def number_array(values: Iterable[float | None]) -> str:
    """Write a float8[] or int[] as text: {0.5,NULL,1e-06}."""
    return "{" + ",".join("NULL" if v is None else repr(v) for v in values) + "}"


def text_array(values: Iterable[str]) -> str:
    """Write a text[] as text, every element quoted."""
    escaped = [
        clean_text(value).replace("\\", "\\\\").replace('"', '\\"') for value in values
    ]
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"


def take_ids(table: str, count: int) -> list[int]:
    """Fresh primary keys, so that children can be copied with their parents."""
    rows = fetch_all(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)",
        [table, count],
    )
    return [pk for (pk,) in rows]


def copy_rollups(run_id: int, events: Sequence[Event], *, first_seq: int) -> None:
    """Store rollups of the steps that end in this batch;

    up to four queries, none without such steps.
    """
    ends = [event for event in events if isinstance(event, StepFinished)]
    if not ends:
        return
    compositions = _compositions(run_id)
    groups: dict[int, list[StepGroup]] = defaultdict(list)
    # Earlier batches may contain groups of the first step that ends in this one.
    groups[ends[0].step] += read_groups(
        run_id, step=ends[0].step, attempt=ends[0].attempt, before_seq=first_seq
    )
    for event in events:
        if isinstance(event, GroupScored):
            groups[event.step].append(from_event(event))
    copy_rows(
        "samples_steprollup",
        ROLLUP_COLUMNS,
        (
            _row(
                run_id,
                end.step,
                end.attempt,
                groups[end.step],
                end.metrics,
                compositions,
            )
            for end in ends
        ),
    )


def fill_rollups(run: Run) -> int:
    """Rollups of the steps that have none, or an older one; superseded ones aside.

    How many were made.
    """
    num_filled = 0
    while missing := _missing(run)[:STEPS_AT_A_TIME]:
        compositions = _compositions(run.pk)
        with transaction.atomic():
            # No ingest runs now, and none was filled since.
            Run.objects.select_for_update().get(pk=run.pk)
            still = {step.pk for step in _missing(run)}
            missing = [step for step in missing if step.pk in still]
            rows = [
                _row(
                    run.pk,
                    step.step,
                    step.attempt,
                    read_groups(run.pk, step=step.step, attempt=step.attempt),
                    run.name_values(step.values),
                    compositions,
                )
                for step in missing
            ]
            StepRollup.objects.filter(
                run=run, superseded_by=None, step__in=[step.step for step in missing]
            ).delete()
            copy_rows("samples_steprollup", ROLLUP_COLUMNS, rows)
        num_filled += len(rows)
    return num_filled


def _missing(run: Run) -> list[Step]:
    current = Step.objects.filter(run=run, superseded_by=None).order_by("step")
    is_older = (Q(passes=b"") & ~Q(groups=b"")) | Q(majorities=b"")
    whole = StepRollup.objects.filter(run=run, superseded_by=None).exclude(is_older)
    return list(current.exclude(step__in=whole.values("step")))


def _compositions(run_id: int) -> Compositions:
    ((text,),) = fetch_all("SELECT config::text FROM runs_run WHERE id = %s", [run_id])
    return read_compositions(text)


def _row(
    run_id: int,
    step: int,
    attempt: int,
    groups: Sequence[StepGroup],
    metrics: Mapping[str, float | None],
    compositions: Compositions,
) -> tuple[object, ...]:
    rollup = roll_up(groups, metrics, compositions.at(step), step)
    return (
        run_id,
        step,
        attempt,
        rollup.groups,
        rollup.reward_quantiles,
        rollup.reward_histogram,
        rollup.advantage_quantiles,
        rollup.advantage_histogram,
        text_array(rollup.rule_names),
        rollup.rules,
        rollup.anatomy,
        rollup.passes,
        rollup.majorities,
    )
