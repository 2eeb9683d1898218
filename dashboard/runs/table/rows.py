"""The rows of a run list: each run with a cell for each column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import NOTHING, duration, sig4
from dashboard.runs.charts.chart import direction_of
from dashboard.runs.config.fields import write_number
from dashboard.runs.config.snapshot import write_setting
from dashboard.runs.models import MetricSummary, Run, RunState
from dashboard.runs.queue.messages import describe_short
from dashboard.runs.queue.order import Line, read_line
from dashboard.runs.table.columns import Column
from dashboard.runs.table.expressions import CONFIG, quote
from dashboard.runs.table.sql import SettingValue, extreme_of

MOMENTS = {"created": "created_at", "started": "started_at", "finished": "finished_at"}
Summaries = dict[tuple[int, str], MetricSummary]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    column: Column
    text: str = ""
    title: str = ""
    moment: datetime | None = None

    @property
    def kind(self) -> str:
        return self.column.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    run: Run
    place: str  # in the queue
    cells: list[Cell]

    @property
    def tags(self) -> list[tuple[str, str]]:
        """Each with the address of the runs that have it."""
        queries = (urlencode({"q": f"tag:{quote(tag)}"}) for tag in self.run.tags)
        return [
            (t, f"?{query}") for t, query in zip(self.run.tags, queries, strict=True)
        ]

    @property
    def live(self) -> dict[str, Any]:
        """What of it changes while it is on the screen."""
        return {
            "state": self.run.state,
            "place": self.place,
            "step": self.run.last_step,
            "cells": {c.column.key: c.text for c in self.cells if c.kind in LIVE},
        }


LIVE = ("progress", "duration", "metric")


def with_settings(runs: QuerySet[Run], columns: Sequence[Column]) -> QuerySet[Run]:
    """The settings that columns show, read beside the runs: configs are long."""
    shown = {
        _alias(i): SettingValue(c.setting) for i, c in enumerate(columns) if c.setting
    }
    return runs.annotate(**shown)


def _alias(place: int) -> str:
    return f"setting_{place}"


def make_rows(runs: Iterable[Run], columns: Sequence[Column]) -> list[Row]:
    """One query more where metrics are shown, four where a run is queued."""
    found = list(runs)
    metrics = {column.metric for column in columns if column.metric}
    summaries = read_summaries([run.pk for run in found], metrics)
    waits = any(run.state == RunState.QUEUED for run in found)
    line = read_line() if waits else Line()
    return [
        Row(
            run=run,
            place=_place(run, line),
            cells=[_cell(run, i, c, summaries) for i, c in enumerate(columns)],
        )
        for run in found
    ]


def read_summaries(ids: Sequence[int], metrics: Iterable[str]) -> Summaries:
    names = list(metrics)
    if not names or not ids:
        return {}
    found = MetricSummary.objects.filter(run__in=ids, name__in=names)
    return {(one.run_id, one.name): one for one in found}


def _place(run: Run, line: Line) -> str:
    place = line.places.get(run.pk) if run.state == RunState.QUEUED else None
    return describe_short(place, line) if place else ""


def _cell(run: Run, place: int, column: Column, summaries: Summaries) -> Cell:
    if column.kind == "metric":
        return _metric_cell(column, summaries.get((run.pk, column.metric)))
    if column.kind == "setting":
        value = getattr(run, _alias(place))
        return Cell(column=column, text=write_value(value), title=write_value(value))
    if column.kind == "moment":
        return Cell(column=column, moment=getattr(run, MOMENTS[column.key]))
    return Cell(column=column, text=_text(run, column.key))


def _metric_cell(column: Column, summary: MetricSummary | None) -> Cell:
    if summary is None:
        return Cell(column=column, text=NOTHING)
    value, title = value_of(column, summary)
    return Cell(column=column, text=sig4(value), title=title)


def value_of(column: Column, summary: MetricSummary) -> tuple[float, str]:
    """The number, and what stands behind it."""
    stat = extreme_of(column.metric) if column.stat == "best" else column.stat
    if stat == "mean":
        return summary.total / summary.num, f"mean of {summary.num:,} values"
    if stat == "last":
        return summary.last, f"step {summary.last_step:,}"
    if stat == "max":
        return summary.high, f"step {summary.high_step:,}"
    return summary.low, f"step {summary.low_step:,}"


def write_value(value: Any) -> str:
    return NOTHING if value is None else write_setting(value)


def _text(run: Run, key: str) -> str:
    match key:
        case "progress":
            return f"{run.last_step:,} of {run.num_steps:,}"
        case "duration":
            return duration(elapsed(run))
        case "owner":
            return str(run.owner) if run.owner else NOTHING
        case "model":
            return run.model_label
        case "steps":
            return f"{run.num_steps:,}"
        case "notes":
            return run.notes or NOTHING
        case "worker":
            return run.worker or NOTHING
    return ""


def elapsed(run: Run) -> Any:
    if run.started_at is None:
        return None
    return (run.finished_at or timezone.now()) - run.started_at


# The groups of a run list as rows: what each is, and what its runs came to.

MAX_OPEN = 20
JSON_WORDS = {"true": "yes", "false": "no"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Average:
    """A column over the runs of a group that have a value."""

    column: Column
    text: str = ""
    note: str = ""


@dataclass(kw_only=True, slots=True)
class GroupedRuns:
    keys: tuple[str, ...]
    values: tuple[str | None, ...]
    num_runs: int
    averages: list[Average]
    is_open: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def token(self) -> str:
        """As `open=` has it."""
        return json.dumps(self.values, ensure_ascii=False, separators=(",", ":"))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Key and value, as they are shown."""
        return [
            (key.removeprefix(CONFIG), _shown(value, key))
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    @property
    def label(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in self.parts)

    def query(self, text: str) -> str:
        """The group as a query, within the one that is there."""
        terms = [
            f"{key}:{'none' if value is None else quote(_shown(value, key))}"
            for key, value in zip(self.keys, self.values, strict=True)
        ]
        return " ".join([*([f"({text})"] if text else []), *terms])


def _shown(value: str | None, key: str) -> str:
    if value is None:
        return "none"
    return write_text(value) if key.startswith(CONFIG) else value


def read_group(
    row: dict[str, Any], keys: Sequence[str], columns: Sequence[Column]
) -> GroupedRuns:
    metrics = [column for column in columns if column.metric]
    values = tuple(row[f"key_{i}"] for i in range(len(keys)))
    own = dict(zip(keys, values, strict=True))
    return GroupedRuns(
        keys=tuple(keys),
        values=values,
        num_runs=row["num_runs"],
        averages=[
            _average(row, i, column, metrics, own) for i, column in enumerate(columns)
        ],
    )


def _average(
    row: dict[str, Any],
    place: int,
    column: Column,
    metrics: Sequence[Column],
    own: dict[str, str | None],
) -> Average:
    if column.metric:
        return _of_metric(row, metrics.index(column), column)
    if column.key in own:
        return Average(column=column, text=_shown(own[column.key], column.key))
    if column.setting and row[f"having_{place}"]:
        different = row[f"different_{place}"]
        if different == 1:
            return Average(column=column, text=write_text(row[f"only_{place}"]))
        return Average(column=column, note=f"{different:,} values")
    return Average(column=column)


def write_text(text: str) -> str:
    """A setting's value as pages write it, from the text that JSON has of it."""
    try:
        return write_number(float(text))
    except ValueError:
        return JSON_WORDS.get(text, text)


def _of_metric(row: dict[str, Any], place: int, column: Column) -> Average:
    """The mean, and beside it the best, or the ends where neither is better."""
    num = row[f"num_{place}"]
    if not num:
        return Average(column=column, note="n 0")
    low, high = sig4(row[f"low_{place}"]), sig4(row[f"high_{place}"])
    direction = direction_of(column.metric)
    ends = f"best {high if direction == 'higher' else low}"
    if direction is None:
        ends = f"{low} to {high}"
    return Average(
        column=column, text=sig4(row[f"mean_{place}"]), note=f"{ends}, n {num:,}"
    )


def read_open(tokens: Sequence[str], num_keys: int) -> set[tuple[str | None, ...]]:
    found = set()
    for token in tokens[:MAX_OPEN]:
        try:
            values = json.loads(token[:4_000])
        except (ValueError, RecursionError):
            continue
        if isinstance(values, list) and len(values) == num_keys:
            found.add(tuple(v if v is None else str(v) for v in values))
    return found
