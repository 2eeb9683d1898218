"""The rows of a run list: each run with a cell for each column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.templatetags.numbers import NOTHING, duration, rounded, sig3
from dashboard.project.database import fetch_all
from dashboard.runs.charts.chart import clip
from dashboard.runs.charts.series import Curve
from dashboard.runs.config.snapshot import write_named
from dashboard.runs.headline import draw_spark
from dashboard.runs.models import ENDED, REWARD, MetricSummary, Run, RunState
from dashboard.runs.progress import describe_silence, seconds_left
from dashboard.runs.queue.messages import describe_short
from dashboard.runs.queue.order import Queue, read_queue
from dashboard.runs.table.columns import MOMENTS, Column
from dashboard.runs.table.expressions import SettingValue, extreme_of
from dashboard.runs.table.parser import quote

LIVE = ("progress", "duration", "metric")  # cells that change while they are displayed
Summaries = dict[tuple[int, str], MetricSummary]
NUM_COLOURS = 10  # --cohort-series-1 … in colors.css
NUM_SPARK = 24  # points of a curve
SPARKLINE = f"{REWARD}.last"  # the column that shows it
# Of each run the reward at evenly spaced steps, or at the last one before.
CURVES = """
    SELECT DISTINCT requested.run, found.step, found.value
      FROM unnest(%s::bigint[], %s::int[]) AS requested(run, step)
      JOIN runs_run ON runs_run.id = requested.run,
           LATERAL (
        SELECT step, values[array_position(metric_names, %s)] AS value FROM runs_step
         WHERE run_id = requested.run AND superseded_by IS NULL
           AND step <= requested.step
         ORDER BY step DESC LIMIT 1
      ) AS found
     WHERE abs(found.value) < 'Infinity'
     ORDER BY 1, 2
"""


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
    curve: Curve = field(default_factory=Curve)  # of the reward
    scale: tuple[float, float] | None = None  # of runs with the same reward

    @property
    def spark(self) -> str:
        values = [float(clip(value)) for value in self.curve.values]
        return draw_spark(values, self.scale) if values else ""

    @property
    def done(self) -> str:
        """Steps; a run that waits for its first one has a place instead."""
        if self.place and not self.run.last_step:
            return ""
        return f"{self.run.last_step:,}/{self.run.num_steps:,}"

    @property
    def left(self) -> str:
        """The time to the end at the latest pace."""
        seconds = seconds_left(self.run)
        return f"{duration(seconds)} left" if seconds else ""

    @property
    def silence(self) -> str:
        """The time that a trainer has stood still."""
        return describe_silence(self.run)

    @property
    def colour(self) -> int:
        """The colour in a comparison."""
        return (self.run.pk - 1) % NUM_COLOURS + 1

    @property
    def drawn(self) -> dict[str, Any]:
        """For the panel of curves."""
        values = [float(f"{clip(value):.6g}") for value in self.curve.values]
        return {
            "id": self.run.pk,
            "name": self.run.name,
            "colour": self.colour,
            "steps": self.curve.steps,
            "values": values,
        }

    @property
    def tags(self) -> list[tuple[str, str]]:
        """The tags, each with the address of the runs that have it."""
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
            "done": self.done,
            "left": self.left,
            "silence": self.silence,
            "spark": self.spark,
            "cells": {c.column.key: c.text for c in self.cells if c.kind in LIVE},
        }


def with_settings(runs: QuerySet[Run], columns: Sequence[Column]) -> QuerySet[Run]:
    """Annotate the settings of the columns, because configs are long."""
    return runs.annotate(
        **{
            _alias(i): SettingValue(c.setting)
            for i, c in enumerate(columns)
            if c.setting
        }
    )


def _alias(place: int) -> str:
    return f"setting_{place}"


def make_rows(
    runs: Iterable[Run],
    columns: Sequence[Column],
    *,
    draws_all: bool = True,
    has_panel: bool = False,
) -> list[Row]:
    """Make one query more if there are metrics, another for the curves of the reward,
    four if a run is queued.
    """
    listed = list(runs)
    drawn = [run for run in listed if draws_all or run.state not in ENDED]
    shows_curves = has_panel or any(column.key == SPARKLINE for column in columns)
    curves = read_curves(drawn) if shows_curves else {}
    summaries = read_summaries(
        [run.pk for run in listed],
        {column.metric for column in columns if column.metric},
    )
    scales = _scale_rewards(listed, summaries)
    queue = (
        read_queue() if any(run.state == RunState.QUEUED for run in listed) else Queue()
    )
    return [
        Row(
            run=run,
            place=_place(run, queue),
            curve=curves.get(run.pk, Curve()),
            scale=scales.get(run.recipe_version_id),
            cells=[_cell(run, i, c, summaries) for i, c in enumerate(columns)],
        )
        for run in listed
    ]


def _scale_rewards(
    runs: Sequence[Run], summaries: Summaries
) -> dict[int | None, tuple[float, float]]:
    """Return the lowest and the highest reward of the runs, by version of the reward.

    Scales of their own would draw 0.02 as steep as 0.8.
    """
    scales: dict[int | None, tuple[float, float]] = {}
    for run in runs:
        if summary := summaries.get((run.pk, REWARD)):
            low, high = scales.get(run.recipe_version_id, (math.inf, -math.inf))
            ends = min(low, clip(summary.low)), max(high, clip(summary.high))
            scales[run.recipe_version_id] = ends
    return scales


def read_curves(runs: Sequence[Run]) -> dict[int, Curve]:
    """Few points of each run's reward; one query."""
    requested: list[tuple[int, int]] = []
    for run in runs:
        first, last = (run.fork_step or 0) + 1, run.last_step
        num = min(NUM_SPARK, last - first + 1)
        stride = (last - first) / max(1, num - 1)
        requested += [(run.pk, round(first + i * stride)) for i in range(num)]
    curves: dict[int, Curve] = {}
    if not requested:
        return curves
    parameters = [*map(list, zip(*requested, strict=True)), REWARD]
    for pk, step, value in fetch_all(CURVES, parameters):
        curve = curves.setdefault(pk, Curve())
        curve.steps.append(step)
        curve.values.append(value)
    return curves


def read_summaries(ids: Sequence[int], metrics: Iterable[str]) -> Summaries:
    names = list(metrics)
    if not names or not ids:
        return {}
    return {
        (summary.run_id, summary.name): summary
        for summary in MetricSummary.objects.filter(run__in=ids, name__in=names)
    }


def _place(run: Run, queue: Queue) -> str:
    place = queue.positions.get(run.pk) if run.state == RunState.QUEUED else None
    return describe_short(place, queue) if place else ""


def _cell(run: Run, place: int, column: Column, summaries: Summaries) -> Cell:
    if column.kind == "metric":
        return _metric_cell(column, summaries.get((run.pk, column.metric)))
    if column.kind == "setting":
        value = getattr(run, _alias(place))
        text = NOTHING if value is None else write_named(column.setting, value)
        return Cell(column=column, text=text, title=text)
    if column.kind == "moment":
        return Cell(column=column, moment=getattr(run, MOMENTS[column.key]))
    title = _rested(run) if column.key == "duration" else ""
    return Cell(column=column, text=column.write(run), title=title)


def _rested(run: Run) -> str:
    """Return the time since its start in which no attempt trained."""
    trained = getattr(run, "trained", None)
    if run.started_at is None or trained is None:
        return ""
    passed = (run.finished_at or timezone.now()) - run.started_at
    rested = passed.total_seconds() - trained
    return f"paused or queued {rounded(rested)}" if rested >= 60 else ""


def _metric_cell(column: Column, summary: MetricSummary | None) -> Cell:
    if summary is None:
        return Cell(column=column, text=NOTHING)
    value, title = value_of(column, summary)
    return Cell(column=column, text=sig3(value), title=title)


def value_of(column: Column, summary: MetricSummary) -> tuple[float, str]:
    """Return the number, and its explanation."""
    stat = extreme_of(column.metric) if column.stat == "best" else column.stat
    if stat == "mean":
        return summary.total / summary.num, f"mean of {summary.num:,} values"
    if stat == "last":
        return summary.last, f"step {summary.last_step:,}"
    if stat == "max":
        return summary.high, f"step {summary.high_step:,}"
    return summary.low, f"step {summary.low_step:,}"
