"""The rows of a run list: each run with a cell for each column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from dashboard.accounts.templatetags.numbers import NOTHING, sig4
from dashboard.runs.config.snapshot import write_setting
from dashboard.runs.models import MetricSummary, Run, RunState
from dashboard.runs.queue.messages import describe_short
from dashboard.runs.queue.order import Queue, read_queue
from dashboard.runs.table.columns import MOMENTS, Column
from dashboard.runs.table.expressions import SettingValue, extreme_of
from dashboard.runs.table.parser import quote

LIVE = ("progress", "duration", "metric")  # cells that change while they are displayed
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
        """The values that change while the row is displayed."""
        return {
            "state": self.run.state,
            "place": self.place,
            "step": self.run.last_step,
            "cells": {c.column.key: c.text for c in self.cells if c.kind in LIVE},
        }


def with_settings(runs: QuerySet[Run], columns: Sequence[Column]) -> QuerySet[Run]:
    """Annotate the settings of the columns, because configs are long."""
    shown = {
        _alias(i): SettingValue(c.setting) for i, c in enumerate(columns) if c.setting
    }
    return runs.annotate(**shown)


def _alias(place: int) -> str:
    return f"setting_{place}"


def make_rows(runs: Iterable[Run], columns: Sequence[Column]) -> list[Row]:
    """One query more if there are metrics, four if a run is queued."""
    found = list(runs)
    metrics = {column.metric for column in columns if column.metric}
    summaries = read_summaries([run.pk for run in found], metrics)
    waits = any(run.state == RunState.QUEUED for run in found)
    queue = read_queue() if waits else Queue()
    return [
        Row(
            run=run,
            place=_place(run, queue),
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


def _place(run: Run, queue: Queue) -> str:
    place = queue.positions.get(run.pk) if run.state == RunState.QUEUED else None
    return describe_short(place, queue) if place else ""


def _cell(run: Run, place: int, column: Column, summaries: Summaries) -> Cell:
    if column.kind == "metric":
        return _metric_cell(column, summaries.get((run.pk, column.metric)))
    if column.kind == "setting":
        value = getattr(run, _alias(place))
        return Cell(column=column, text=write_value(value), title=write_value(value))
    if column.kind == "moment":
        return Cell(column=column, moment=getattr(run, MOMENTS[column.key]))
    return Cell(column=column, text=column.write(run))


def _metric_cell(column: Column, summary: MetricSummary | None) -> Cell:
    if summary is None:
        return Cell(column=column, text=NOTHING)
    value, title = value_of(column, summary)
    return Cell(column=column, text=sig4(value), title=title)


def value_of(column: Column, summary: MetricSummary) -> tuple[float, str]:
    """The number, and its explanation."""
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
