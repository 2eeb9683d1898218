"""A run as files: completions and metrics as tables, metrics as TensorBoard events."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import pyarrow as pa
from django.db.models import F, Func, Q, QuerySet

from cohort.lines import number
from dashboard.completions.annotations import (
    Annotations,
    annotated_group_ids,
    read_annotations,
)
from dashboard.completions.models import Completion, Group
from dashboard.completions.prompts import pass_rate_lines
from dashboard.runs.models import Evaluation, Run, Step
from dashboard.transfers.export_tables import TYPES, WRITERS, Record, Sink, Span, Table
from dashboard.transfers.tensorboard import write_scalars, write_version
from dashboard.web.downloads import Streamed, attach

FileName = Literal[
    "metrics.csv",
    "metrics.jsonl",
    "metrics.parquet",
    "completions.csv",
    "completions.jsonl",
    "completions.parquet",
    "pass-rates.jsonl",
    "tensorboard.zip",
]
GROUPS_AT_ONCE = 50  # whose completions are in memory together
STEPS_AT_ONCE = 500  # whose values are in memory together
PIECE_BYTES = 64 * 2**10
OWN = {"step": pa.int64(), "time": pa.timestamp("us", tz="UTC")}
CALL = ("name", "arguments", "result", "error")
COLUMNS: dict[str, pa.DataType] = {
    "step": pa.int64(),
    "prompt_index": pa.int64(),
    "position": pa.int64(),
    "prompt": pa.string(),
    "answer": pa.string(),  # a list as JSON
    "answer_is_list": pa.bool_(),
    "completion": pa.string(),
    "reward": pa.float64(),
    "rules": pa.struct([]),  # of the run's rules
    "advantage": pa.float64(),
    "num_tokens": pa.int64(),
    "end_reason": pa.string(),
    "mean_logprob": pa.float64(),
    "turns": pa.list_(
        pa.struct(
            {
                "author": pa.string(),
                "name": pa.string(),
                "start": pa.int64(),
                "end": pa.int64(),
                "token_end": pa.int64(),
                "seconds": pa.float64(),
                "reward": pa.float64(),
                "calls": pa.list_(pa.struct(dict.fromkeys(CALL, pa.string()))),
            }
        )
    ),
    "signal": pa.string(),
    "is_trained": pa.bool_(),
    "group_reward_mean": pa.float64(),
    "group_reward_std": pa.float64(),
    "good": pa.int64(),
    "bad": pa.int64(),
    "tags": pa.list_(pa.struct({"name": pa.string(), "by": pa.string()})),
    "comments": pa.list_(
        pa.struct({"text": pa.string(), "by": pa.string(), "at": pa.string()})
    ),
}


def completions_table(run: Run, span: Span) -> Table:
    """Build a table of a row a completion, by step, prompt and position."""
    return Table(
        columns=COLUMNS,
        rows=_completion_rows(run, span),
        maps={"rules": rule_names(run, span)},
    )


def groups_of(run: Run, span: Span) -> QuerySet[Group]:
    return Group.objects.current().filter(run=run, step__range=(span.first, span.last))


def rule_names(run: Run, span: Span) -> list[str]:
    """List all rules that scored; one query."""
    named = groups_of(run, span).annotate(
        rule=Func(F("rule_names"), function="unnest", output_field=None)
    )
    return sorted(named.order_by().values_list("rule", flat=True).distinct())


def _completion_rows(run: Run, span: Span) -> Iterator[Record]:
    marked = set(annotated_group_ids(run))
    groups, behind = groups_of(run, span).order_by("step", "prompt_index"), Q()
    while found := list(
        groups.filter(behind).prefetch_related("packed_completions")[:GROUPS_AT_ONCE]
    ):
        annotated = marked & {group.pk for group in found}
        marks = read_annotations(annotated, None) if annotated else {}
        for group in found:
            for completion in group.completions:
                own = marks.get((group.pk, completion.position))
                yield _row(group, completion, own or Annotations())
        step, prompt = found[-1].step, found[-1].prompt_index
        behind = Q(step__gt=step) | Q(step=step, prompt_index__gt=prompt)


def _row(group: Group, completion: Completion, marks: Annotations) -> Record:
    scores = map(number, completion.rule_scores)
    return {
        "step": group.step,
        "prompt_index": group.prompt_index,
        "position": completion.position,
        "prompt": group.prompt,
        "answer": group.answer,
        "answer_is_list": group.answer_is_list,
        "completion": completion.text,
        "reward": number(completion.reward),
        "rules": dict(zip(group.rule_names, scores, strict=False)),
        "advantage": number(completion.advantage),
        "num_tokens": completion.num_tokens,
        "end_reason": completion.end_reason,
        "mean_logprob": number(completion.mean_logprob),
        "turns": [turn.model_dump() for turn in completion.turns] or None,
        "signal": group.signal,
        "is_trained": group.is_trained,
        "group_reward_mean": number(group.reward_mean),
        "group_reward_std": number(group.reward_std),
        **marks.as_json(),
    }


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements of a step, held-out evaluations included."""

    step: int
    time: datetime
    values: dict[str, float]  # those that are numbers


def metric_names(run: Run) -> list[str]:
    """List names of steps' metrics, in their order, then of evaluations; one query."""
    held_out = Evaluation.objects.filter(run=run, superseded_by=None)
    measured = held_out.order_by("name", "-step").distinct("name")
    names = dict.fromkeys(run.metric_names)
    for metrics in measured.values_list("metrics", flat=True):
        names |= dict.fromkeys(metrics)
    return list(names)


def read_points(run: Run, span: Span) -> Iterator[Point]:
    """Read points by rising step; two queries for some hundred steps each."""
    first = span.first
    while True:
        current = {"run": run, "superseded_by": None}
        steps = Step.objects.filter(**current, step__range=(first, span.last))
        steps = steps.order_by("step")
        rows = list(steps.values_list("step", "time", "values")[:STEPS_AT_ONCE])
        last = rows[-1][0] if len(rows) == STEPS_AT_ONCE else span.last
        held_out = Evaluation.objects.filter(**current, step__range=(first, last))
        points: dict[int, Point] = {}
        for step, time, metrics in held_out.order_by("step", "name").values_list(
            "step", "time", "metrics"
        ):
            point = points.setdefault(step, Point(step, time, {}))
            point.values.update(_numbers(metrics))
        for step, time, values in rows:
            measured = _numbers(run.name_values(values))
            before = points[step].values if step in points else {}
            points[step] = Point(step, time, measured | before)
        yield from (points[step] for step in sorted(points))
        if len(rows) < STEPS_AT_ONCE:
            return
        first = last + 1


def _numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    """Convert to floats: of 1e16, which jsonb holds exactly, it gives an integer
    back.
    """
    return {n: v for n, value in metrics.items() if (v := number(value)) is not None}


def metrics_table(run: Run, span: Span) -> Table:
    """Columns `step`, `time` and one for each metric, a number or none."""
    # A metric of an outside trainer may be called as a column of ours.
    names = {
        name: f"metric/{name}" if name in OWN else name for name in metric_names(run)
    }
    columns = OWN | {column: pa.float64() for column in names.values()}
    rows = (
        {"step": point.step, "time": point.time}
        | {column: point.values.get(name) for name, column in names.items()}
        for point in read_points(run, span)
    )
    return Table(columns=columns, rows=rows, maps={})


def folder_name(run: Run) -> str:
    """Return the run's name in characters that every system accepts, and its number."""
    name = re.sub(r"[^\w.-]+", "-", run.name).strip("-.")
    return f"{name or 'run'}-{run.pk}"


def write_tensorboard(run: Run, span: Span) -> Iterator[bytes]:
    """Write a zip file, while it is read: a folder with one event file."""
    began = int(run.created_at.timestamp())
    name = f"{folder_name(run)}/events.out.tfevents.{began}.cohort.{run.pk}.0"
    sink = Sink()
    # Its length is not known yet, and may be too much for the old format.
    with (
        zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w", force_zip64=True) as file,
    ):
        file.write(write_version(run.created_at.timestamp()))
        for point in read_points(run, span):
            if point.values:
                time = point.time.timestamp()
                file.write(write_scalars(point.step, time, point.values))
            if sink.num_bytes >= PIECE_BYTES:
                yield sink.taken()
    yield sink.taken()


TABLES = {"metrics": metrics_table, "completions": completions_table}


def send_file(run: Run, span: Span, file: str) -> Streamed:
    """Sent while it is read, so that nothing is held but a part of it."""
    name, suffix = file.rsplit(".", 1)
    attached = f"{folder_name(run)}-{name}"
    if not span.is_all:
        last = "end" if span.last == Span().last else span.last
        attached += f"-steps-{span.first}-{last}"
    if suffix == "zip":
        pieces = write_tensorboard(run, span)
    elif name == "pass-rates":  # of the newest groups, whichever steps
        pieces = (line.encode() for line in pass_rate_lines(run))
    else:
        pieces = WRITERS[suffix](TABLES[name](run, span))
    return attach(
        pieces,
        filename=f"{attached}.{suffix}",
        content_type=TYPES.get(suffix, "application/zip"),
    )
