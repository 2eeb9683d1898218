"""Metrics as W&B writes them into CSV files.

The export of a panel has its x axis first (Step, or a metric such as
train/global_step) and for each run "<run> - <metric>", with "…__MIN" and "…__MAX" of
what was averaged for the screen. `run.history()` has _step, _timestamp and the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dashboard.datasets.parsing.records import Record, Refusal, quote
from dashboard.exchange.imports.items import MAX_STEP, Point
from trainer.client.lines import metric_name

# The trainer's own step comes before W&B's, which counts calls of log().
STEPS = (
    "train/global_step",
    "training/global_step",
    "trainer/global_step",
    "global_step",
    "Step",
    "_step",
    "step",
)
SEPARATOR = " - "
_BOUNDS = ("__MIN", "__MAX")
_OWN = {"_step", "_timestamp", "_runtime", "_wandb", "time"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where in a row what stands."""

    step: str
    time: str | None
    metrics: dict[str, tuple[str, str]]  # column: its run, its metric

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(run for run, _ in self.metrics.values()))


def layout_of(columns: Iterable[str]) -> Layout | None:
    """None: there is no step, or nothing else."""
    names = list(columns)
    step = next((name for name in STEPS if name in names), None)
    if step is None:
        return None
    others = [n for n in names if n not in (*STEPS, *_OWN) and not n.endswith(_BOUNDS)]
    metrics = {name: _parts(name) for name in others}
    if not metrics:
        return None
    time = "_timestamp" if "_timestamp" in names else None
    return Layout(step=step, time=time, metrics=metrics)


def _parts(column: str) -> tuple[str, str]:
    run, _, metric = column.rpartition(SEPARATOR)
    return run, metric_name(metric)


def read_point(
    layout: Layout, run: str | None, record: Record
) -> Point | Refusal | None:
    """None: the row has no step, as those of a history that logs something else."""
    given = _number(record.values.get(layout.step))
    if given is None:
        return None
    if not given.is_integer() or not 0 <= given <= MAX_STEP:
        return Refusal(
            line=record.line,
            column=layout.step,
            value=quote(record.values[layout.step]),
            problem="The step is no whole number from 0 on.",
            remedy="Export the panel over steps.",
        )
    time = _number(record.values.get(layout.time)) if layout.time else None
    values = dict(_values(layout, run, record))
    return Point(step=int(given), time=time, values=values) if values else None


def _values(
    layout: Layout, run: str | None, record: Record
) -> Iterator[tuple[str, float]]:
    for column, (of_run, metric) in layout.metrics.items():
        if run is None or of_run == run:
            value = _number(record.values.get(column))
            if value is not None:
                yield metric, value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
