"""What a run's own row says about its progress: metric names, last and best values."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboard.runs.models import REWARD
from dashboard.runs.queue.estimates import PACE_STEPS, STEP_SECONDS
from trainer.events import Evaluated, Event, StepFinished

NAME_LENGTH = 120
LARGEST = sys.float_info.max
# What a step sampled, and the metric that adds it up: the axis of a chart.
TOTALS = {
    "sampling/num_tokens": "total/tokens",
    "sampling/num_completions": "total/completions",
}


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

    def __post_init__(self) -> None:
        self._places = {name: place for place, name in enumerate(self.metric_names)}
        last = self.summary.setdefault("last", {})
        self.summary.setdefault("best", {})
        # A run that was not counted from its first step on has no totals.
        start = {} if self.last_step else dict.fromkeys(TOTALS.values(), 0.0)
        known = {name: last[name] for name in TOTALS.values() if name in last}
        self._totals = start | known

    def observe(self, event: Event) -> None:
        if isinstance(event, StepFinished):
            self.last_step = max(self.last_step, event.step)
            self._note_best(event.metrics.get(REWARD), event.step)
            self._note_pace(event.metrics.get(STEP_SECONDS))
        if isinstance(event, StepFinished | Evaluated):
            self.summary["last"].update(finite(event.metrics))
            self.is_changed = True

    def values(self, metrics: Mapping[str, float | None]) -> list[float | None]:
        """The metrics in the order of `metric_names`, which grows as needed."""
        row: list[float | None] = [None] * len(self.metric_names)
        for name, value in self._with_totals(finite(metrics)).items():
            place = self._place(name[:NAME_LENGTH])
            if place == len(row):
                row.append(value)
            else:
                row[place] = value
        return row

    def _with_totals(self, metrics: dict[str, float | None]) -> dict[str, float | None]:
        """With what the run has sampled up to this step, where the step tells."""
        told = {t: metrics.get(m) for m, t in TOTALS.items() if t in self._totals}
        for total, value in told.items():
            if value is not None:
                # jsonb has no infinity either.
                added = self._totals[total] + value
                self._totals[total] = max(-LARGEST, min(LARGEST, added))
                self.summary["last"][total] = self._totals[total]
        given = {t: self._totals[t] for t, value in told.items() if value is not None}
        return metrics | given

    def _place(self, name: str) -> int:
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self.metric_names)
            self.metric_names.append(name)
            self.is_changed = True
        return place

    def _note_best(self, value: float | None, step: int) -> None:
        best = self.summary["best"].get(REWARD)
        if value is None or not math.isfinite(value):
            return
        if best is None or value > best:
            self.summary["best"] = {REWARD: value, "step": step}

    def _note_pace(self, seconds: float | None) -> None:
        if seconds is None or not math.isfinite(seconds):
            return
        latest = [*self.summary.get("step_seconds", []), seconds]
        self.summary["step_seconds"] = latest[-PACE_STEPS:]


def finite(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """jsonb has no NaN: a number that is not finite is no value."""
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in metrics.items()
    }
